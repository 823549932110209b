#include <torch/csrc/cuda/lms/room/layout.h>

#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/room/pages.h>

#include <algorithm>
#include <utility>

namespace torch::cuda::lms {

namespace {

// How often pieces are joined so that others can be joined.
constexpr int kDepth = 2;
// How many windows are tried for a piece that is needed in between, of those that move the fewest
// bytes. For the request itself, these are a part of all trials.
constexpr size_t kWindowsBetween = 8;
constexpr int kWindowsPart = 4;
constexpr size_t kWindowsOfObstacles = 64; // that move the fewest bytes
constexpr size_t kRanges = 400; // with more of them, a trial takes longer, and there are fewer

constexpr size_t kNone = SIZE_MAX; // index

} // namespace

struct Layout::Search {
  const size_t windows; // that are tried for the request, of those that move the fewest bytes
  int trials; // that are left
};

Layout::Layout(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    const Blocks& movable) {
  // With expandable segments, the ranges of mapped pages are reported as segments, by address.
  const auto unmapped = [this](size_t end) {
    if (!ranges_.empty() && ranges_.back().expandable && ranges_.back().end() < end) {
      const size_t begin = ranges_.back().end();
      ranges_.push_back({begin, end - begin, nullptr, false, false, true, /*unmapped=*/true});
    }
  };
  for (const auto& segment : segments) {
    if (torch::cuda::lms::serves(segment, device, stream) && segment.is_large) {
      if (segment.is_expandable) {
        unmapped(segment.address);
      }
      append_ranges(segment, movable, ranges_);
    }
  }
  unmapped(ranges_.empty() ? 0 : ranges_.back().end() + kUnlimited);
}

// Without a free piece, the native allocator maps pages in the first unmapped range that is large
// enough, together with free memory beside it and unmapped ranges that follow.
bool Layout::serves(size_t bytes, size_t left) const {
  if (hole(bytes) != kNone) {
    return true;
  }
  for (size_t i = 0; left > 0 && i < ranges_.size(); ++i) {
    if (!ranges_[i].unmapped) {
      continue;
    }
    size_t size = 0;
    size_t mapped = 0;
    for (size_t j = i > 0 && ranges_[i - 1].free ? i - 1 : i; j < ranges_.size(); ++j) {
      const Range& range = ranges_[j];
      if (!range.free && !range.unmapped) {
        break;
      }
      if (range.unmapped) {
        mapped += std::min(range.size, in_pages(bytes - size));
      }
      size += range.size;
      if (size >= bytes) {
        return mapped <= left;
      }
    }
  }
  return false;
}

std::vector<Move> Layout::join(size_t bytes, size_t left, int trials) const {
  trials =
      static_cast<int>(static_cast<size_t>(trials) * kRanges / std::max(kRanges, ranges_.size()));
  for (const bool maps : {false, true}) {
    Search search{static_cast<size_t>(trials / kWindowsPart), trials};
    for (int depth = 0; depth <= kDepth && (left > 0 || !maps); ++depth) {
      Layout layout = *this;
      if (layout.make_piece(bytes, maps ? left : 0, depth, search)) {
        return std::move(layout.moves_);
      }
    }
  }
  return {};
}

// Windows of at least this number of bytes. Without `left`, their pages are mapped. Otherwise some
// are not, but at most so many bytes.
std::vector<Run> Layout::windows(size_t bytes, size_t left) const {
  std::vector<Run> runs;
  if (left == 0) {
    each_run(ranges_, bytes, [&](const Run& run) { runs.push_back(run); });
    return runs;
  }
  for (size_t i = 0; i < ranges_.size(); ++i) {
    Run run{i, i, 0};
    size_t size = 0;
    size_t mapped = 0;
    while (size < bytes && mapped <= left && run.last < ranges_.size()) {
      const Range& range = ranges_[run.last];
      if (!(range.usable() || range.unmapped) ||
          (range.first && run.last > i && !ranges_[run.last - 1].unmapped)) {
        break;
      }
      mapped += range.unmapped ? std::min(range.size, in_pages(bytes - size)) : 0;
      run.cost += range.block ? range.size : 0;
      size += range.size;
      ++run.last;
    }
    if (size >= bytes && mapped > 0 && mapped <= left) {
      runs.push_back(run);
    }
  }
  return runs;
}

// Of the windows, so many that move the fewest bytes.
std::vector<Run> Layout::cheapest(size_t bytes, size_t left, size_t count) const {
  std::vector<Run> runs = windows(bytes, left);
  const auto kept = static_cast<std::ptrdiff_t>(std::min(runs.size(), count));
  std::partial_sort(runs.begin(), runs.begin() + kept, runs.end(), [](const Run& a, const Run& b) {
    return a.cost < b.cost;
  });
  runs.resize(static_cast<size_t>(kept));
  return runs;
}

bool Layout::make_piece(size_t bytes, size_t left, int depth, Search& search) {
  const size_t most = moves_.empty() ? search.windows : kWindowsBetween;
  for (const Run& run : cheapest(bytes, left, most)) {
    if (search.trials-- <= 0) {
      return false;
    }
    Layout trial = *this;
    if (trial.vacate(run, depth, search) && trial.serves(bytes, left)) {
      *this = std::move(trial);
      return true;
    }
  }
  return false;
}

std::vector<Block*> Layout::obstacles(
    size_t bytes,
    size_t left,
    const std::function<size_t(const Block&)>& cost) const {
  std::vector<Block*> best;
  size_t least = bytes;
  const auto look = [&](size_t mapped) {
    for (const Run& run : cheapest(bytes, mapped, kWindowsOfObstacles)) {
      std::vector<Block*> blocks = Layout(*this).clear(run);
      size_t sum = 0;
      for (const Block* const block : blocks) {
        sum += cost(*block);
      }
      if (sum < least) {
        least = sum;
        best = std::move(blocks);
      }
    }
  };
  look(0);
  if (left > 0) {
    look(left);
  }
  return best;
}

// Keeps the run's ranges free for a window. Returns where its blocks begin, the largest first.
std::vector<size_t> Layout::begin(const Run& run, int window) {
  std::vector<size_t> addresses;
  for (size_t i = run.first; i < run.last; ++i) {
    ranges_[i].window = window;
    if (ranges_[i].block) {
      addresses.push_back(ranges_[i].begin);
    }
  }
  std::stable_sort(addresses.begin(), addresses.end(), [&](size_t a, size_t b) {
    return ranges_[at(a)].size > ranges_[at(b)].size;
  });
  return addresses;
}

// Moves the blocks of a run away.
bool Layout::vacate(const Run& run, int depth, Search& search) {
  // Of those that are being vacated at a time, each has another number.
  const int window = depth + 1;
  for (const size_t address : begin(run, window)) {
    const size_t size = rounded(ranges_[at(address)].block->size);
    if (hole(size) == kNone && (depth == 0 || !make_piece(size, 0, depth - 1, search))) {
      return false;
    }
    move(at(address), hole(size));
  }
  for (Range& range : ranges_) {
    if (range.window == window) {
      range.window = 0;
    }
  }
  tidy();
  return true;
}

// Moves those away for which there is a place. Returns the others.
std::vector<Block*> Layout::clear(const Run& run) {
  std::vector<Block*> rest;
  for (const size_t address : begin(run, 1)) {
    Block* const block = ranges_[at(address)].block;
    const size_t place = hole(rounded(block->size));
    if (place == kNone) {
      rest.push_back(block);
    } else {
      move(at(address), place);
    }
  }
  return rest;
}

// The index of the free range that the native allocator takes for a request of this number of
// bytes: of those that are large enough, the smallest, and then the one with the lowest address.
size_t Layout::hole(size_t bytes) const {
  size_t best = kNone;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (range.free && range.window == 0 && range.size >= bytes &&
        (best == kNone || range.size < ranges_[best].size ||
         (range.size == ranges_[best].size && range.begin < ranges_[best].begin))) {
      best = i;
    }
  }
  return best;
}

// The index of the range that begins at the address.
size_t Layout::at(size_t address) const {
  const auto found = std::find_if(ranges_.begin(), ranges_.end(), [address](const Range& range) {
    return range.begin == address;
  });
  return static_cast<size_t>(found - ranges_.begin());
}

// Moves the block of one range into another, free one. The indices change.
void Layout::move(size_t from, size_t to) {
  Range& source = ranges_[from];
  Range& target = ranges_[to];
  moves_.push_back({source.block, source.begin, target.begin});
  target.block = std::exchange(source.block, nullptr);
  target.free = false;
  source.free = true;
  const size_t used = rounded(target.block->size);
  const size_t rest = target.size - used;
  if (rest > StatArray::kSmallSize) { // otherwise it stays with the block
    Range behind = target;
    behind.begin += used;
    behind.size = rest;
    behind.block = nullptr;
    behind.free = true;
    behind.first = false;
    target.size = used;
    ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(to) + 1, behind);
  }
  tidy();
}

// Joins free ranges that are side by side. Those of two windows stay apart, because one of them is
// given free before the other.
void Layout::tidy() {
  size_t kept = 0;
  for (size_t i = 1; i < ranges_.size(); ++i) {
    Range& last = ranges_[kept];
    const Range& range = ranges_[i];
    if (last.free && range.free && last.window == range.window && !range.first) {
      last.size += range.size;
    } else {
      ranges_[++kept] = range;
    }
  }
  ranges_.resize(std::min(ranges_.size(), kept + 1));
}

} // namespace torch::cuda::lms
