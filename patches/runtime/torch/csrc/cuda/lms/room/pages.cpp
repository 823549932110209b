#include <torch/csrc/cuda/lms/room/pages.h>

#include <torch/csrc/cuda/lms/base/stats.h>

#include <algorithm>
#include <unordered_map>

namespace torch::cuda::lms {

namespace {

// The native allocator's sizes for requests of more than 1 MiB, and for smaller ones. Users can
// change the first (large_segment_size_mb). Then too much or too little is paged out here, and
// another step makes room.
constexpr size_t kLargePage = size_t(20) << 20;
constexpr size_t kSmallPage = size_t(2) << 20;
constexpr size_t kWindow = 16; // blocks, as in Policy

// The native allocator reports each range of mapped pages as a segment.
class Segment {
 public:
  Segment(const compat::cca::SegmentInfo& info, const std::unordered_map<size_t, Block*>& idle)
      : page_(info.is_large ? kLargePage : kSmallPage) {
    size_t begin = 0;
    for (const auto& range : info.blocks) {
      const auto found = range.allocated ? idle.find(info.address + begin) : idle.end();
      Block* const block = found == idle.end() ? nullptr : found->second;
      const bool free = !range.allocated && !range.active;
      ranges_.push_back({begin, begin + range.size, block, free});
      begin += range.size;
    }
  }

  size_t free() const {
    size_t bytes = 0;
    for (size_t i = 0; i < ranges_.size();) {
      const size_t next = std::max(end_of_free(i), i + 1);
      bytes += ranges_[i].free ? whole(ranges_[i].begin, ranges_[next - 1].end) : 0;
      i = next;
    }
    return bytes;
  }

  // Calls f(block, bytes) for each idle block, with the bytes of whole pages that its page-out
  // would make free.
  template <class F>
  void each(F f) const {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (ranges_[i].block) {
        f(*ranges_[i].block, yield(i));
      }
    }
  }

  // Counts the block's range as free from now on.
  void leave(const Block& block) {
    for (Range& range : ranges_) {
      if (range.block == &block) {
        range.block = nullptr;
        range.free = true;
      }
    }
  }

 private:
  struct Range {
    size_t begin; // bytes from the segment's begin, which is that of a page
    size_t end;
    Block* block; // null if it is not idle
    bool free;
  };

  // Bytes of the whole pages between two addresses.
  size_t whole(size_t begin, size_t end) const {
    const size_t first = (begin + page_ - 1) / page_;
    const size_t last = end / page_;
    return last > first ? (last - first) * page_ : 0;
  }

  // The index after the last of the adjacent free ranges from i on.
  size_t end_of_free(size_t i) const {
    while (i < ranges_.size() && ranges_[i].free) {
      ++i;
    }
    return i;
  }

  size_t yield(size_t i) const {
    size_t first = i;
    while (first > 0 && ranges_[first - 1].free) {
      --first;
    }
    const size_t end = end_of_free(i + 1);
    const size_t before = whole(ranges_[first].begin, ranges_[i].begin);
    const size_t after = whole(ranges_[i].end, ranges_[end - 1].end);
    return whole(ranges_[first].begin, ranges_[end - 1].end) - before - after;
  }

  size_t page_;
  std::vector<Range> ranges_;
};

} // namespace

size_t in_pages(size_t bytes) {
  const size_t page = bytes > StatArray::kSmallSize ? kLargePage : kSmallPage;
  return (bytes + page - 1) / page * page;
}

size_t page_size(const std::vector<compat::cca::SegmentInfo>& segments, c10::DeviceIndex device) {
  const bool expandable = std::any_of(segments.begin(), segments.end(), [&](const auto& info) {
    return info.device == device && info.is_large && info.is_expandable;
  });
  return expandable ? kLargePage : 1;
}

std::vector<Block*> pages(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    size_t bytes,
    const std::vector<Block*>& idle) {
  std::unordered_map<size_t, Block*> by_address;
  for (Block* const block : idle) {
    by_address.emplace(reinterpret_cast<size_t>(block->memory.get()), block);
  }
  std::vector<Segment> mapped;
  size_t free = 0;
  for (const auto& info : segments) {
    if (info.device == device && info.is_expandable &&
        info.owner_private_pool_id == compat::MempoolId{0, 0}) {
      mapped.emplace_back(info, by_address);
      free += mapped.back().free();
    }
  }
  std::vector<Block*> chosen;
  while (!mapped.empty() && free < bytes) {
    std::unordered_map<const Block*, size_t> yields;
    for (const Segment& segment : mapped) {
      segment.each([&](Block& block, size_t yield) { yields[&block] = yield; });
    }
    // The smallest of the first few that is enough alone, or else the one that yields most.
    Block* best = nullptr;
    size_t most = 0;
    size_t seen = 0;
    for (Block* const block : idle) {
      const auto found = yields.find(block);
      const size_t yield = found == yields.end() ? 0 : std::min(found->second, bytes - free);
      if (yield > most || (yield > 0 && yield == most && block->size < best->size)) {
        best = block;
        most = yield;
      }
      seen += yield > 0;
      if (seen == kWindow) {
        break;
      }
    }
    if (!best) {
      return {};
    }
    chosen.push_back(best);
    free += yields[best];
    for (Segment& segment : mapped) {
      segment.leave(*best);
    }
  }
  return chosen;
}

} // namespace torch::cuda::lms
