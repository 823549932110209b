#include <torch/csrc/cuda/lms/room/steering.h>

#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/room/runs.h>

#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace torch::cuda::lms {

namespace {

size_t address_of(const at::DataPtr& memory) {
  return reinterpret_cast<size_t>(memory.get());
}

// A free range, and how large the native allocator takes it for: if pages can be mapped behind it,
// with these.
struct Hole {
  size_t begin;
  size_t size; // bytes
  size_t reach; // bytes
};
using Holes = std::vector<Hole>;

// The native allocator's order.
bool smaller(const Hole& a, const Hole& b) {
  return std::make_pair(a.size, a.begin) < std::make_pair(b.size, b.begin);
}

// In that order.
Holes holes(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream) {
  Holes found;
  size_t behind = 0; // bytes that are mapped as a segment, and end with the hole found last
  for (const auto& segment : segments) {
    if (!serves(segment, device, stream) || !segment.is_large) {
      continue;
    }
    if (behind != 0) {
      found.back().reach =
          segment.address > behind ? segment.address - found.back().begin : kUnlimited;
    }
    std::vector<Range> ranges;
    append_ranges(segment, {}, ranges);
    for (const Range& range : ranges) {
      if (range.free) {
        found.push_back({range.begin, range.size, range.size});
      }
    }
    behind = segment.is_expandable && ranges.back().free ? ranges.back().end() : 0;
  }
  if (behind != 0) {
    found.back().reach = kUnlimited;
  }
  std::sort(found.begin(), found.end(), smaller);
  return found;
}

// The one that it takes for a request of this number of bytes.
Holes::iterator choice(Holes& among, size_t bytes) {
  auto chosen = std::find_if(
      among.begin(), among.end(), [bytes](const Hole& hole) { return hole.size >= bytes; });
  while (chosen != among.end() && chosen->reach > chosen->size &&
         std::next(chosen) != among.end() && std::next(chosen)->reach < chosen->reach) {
    ++chosen;
  }
  return chosen;
}

} // namespace

// Other threads may allocate in between. Then the address is another one, and nothing was gained.
bool Steering::clear(const Planned::Piece& piece, std::vector<Loan>& others) const {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_).stream();
  Holes free = holes(native_.snapshot().segments, device_, stream);
  const auto has = [&piece](const Hole& hole) {
    return hole.begin <= piece.address && piece.address + piece.bytes <= hole.begin + hole.size;
  };
  const auto target = std::find_if(free.begin(), free.end(), has);
  if (target == free.end()) {
    return false;
  }
  const size_t before = piece.address - target->begin;
  if (before > 0 && before <= StatArray::kSmallSize) {
    return false; // a request for it would get other memory
  }
  const auto take = [&](Holes::iterator hole, size_t bytes) {
    others.emplace_back(native_.allocate(bytes));
    return address_of(others.back().memory) == hole->begin;
  };
  // Takes what would be taken instead of the target.
  const auto prefer = [&](size_t bytes) {
    for (;;) {
      const auto chosen = choice(free, bytes);
      if (chosen == free.end() || has(*chosen)) {
        return chosen != free.end();
      }
      if (choice(free, chosen->size) != chosen || !take(chosen, chosen->size)) {
        return false;
      }
      free.erase(chosen);
    }
  };
  if (before > 0) {
    if (!prefer(before) || !take(choice(free, before), before)) {
      return false;
    }
    const auto first = choice(free, before);
    Hole rest = *first;
    free.erase(first);
    rest.begin += before;
    rest.size -= before;
    rest.reach -= before;
    free.insert(std::lower_bound(free.begin(), free.end(), rest, smaller), rest);
  }
  return prefer(piece.bytes);
}

at::DataPtr Steering::take(const Planned::Piece& piece) const {
  std::vector<Loan> others;
  at::DataPtr memory;
  try {
    if (clear(piece, others)) {
      memory = native_.allocate(piece.bytes);
      if (address_of(memory) != piece.address) {
        Lock::drop_later(std::exchange(memory, at::DataPtr()));
      }
    }
  } catch (const c10::Error&) {
    (void)cudaGetLastError(); // the request goes its usual way
  }
  return memory;
}

size_t Steering::find(size_t bytes) const {
  try {
    const Loan found(native_.allocate(bytes));
    return address_of(found.memory);
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
    return 0;
  }
}

} // namespace torch::cuda::lms
