#pragma once

#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <cstddef>
#include <map>
#include <vector>

namespace torch::cuda::lms {

constexpr size_t kUnlimited = size_t(1) << 44; // addresses behind the last page

// Blocks by address.
using Blocks = std::map<size_t, Block*>;

// Whether the native allocator serves requests of this stream, but none to a private pool, from the
// segment.
inline bool
serves(const compat::cca::SegmentInfo& segment, c10::DeviceIndex device, cudaStream_t stream) {
  return segment.device == device && segment.stream == stream &&
         segment.owner_private_pool_id == compat::MempoolId{0, 0};
}

// Addresses of a segment that are free, or that one allocation has.
struct Range {
  size_t begin;
  size_t size; // bytes
  Block* block; // that has it, if it is among those that can leave
  bool free;
  bool first; // of its segment
  bool expandable; // its segment
  // Not memory, but addresses beside it, where the native allocator can map pages.
  bool unmapped = false;
  int window = 0; // it is kept free for this one, and not to be used; 0 if for none

  size_t end() const {
    return begin + size;
  }
  bool usable() const {
    return window == 0 && (free || block);
  }
};

// Appends the ranges of a segment. `blocks` are those that can leave.
inline void append_ranges(
    const compat::cca::SegmentInfo& segment,
    const Blocks& blocks,
    std::vector<Range>& to) {
  size_t address = segment.address;
  for (const auto& range : segment.blocks) {
    const bool free = !range.allocated && !range.active;
    const auto block = free ? blocks.end() : blocks.find(address);
    Block* const found = block == blocks.end() ? nullptr : block->second;
    const auto size = static_cast<size_t>(range.size);
    to.push_back({address, size, found, free, address == segment.address, segment.is_expandable});
    address += size;
  }
}

// Ranges that are adjacent: the indices [first, last).
struct Run {
  size_t first;
  size_t last;
  size_t cost; // bytes of its blocks
};

// Calls f(run) for each run of usable ranges that has at least this number of bytes, and of which
// no range at its begin is needless.
template <class F>
void each_run(const std::vector<Range>& ranges, size_t bytes, F f) {
  Run run{0, 0, 0};
  size_t size = 0; // of the run
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!ranges[i].usable() || ranges[i].first) {
      run = {i, i, 0};
      size = 0;
    }
    if (!ranges[i].usable()) {
      run.first = i + 1;
      continue;
    }
    run.last = i + 1;
    run.cost += ranges[i].block ? ranges[i].size : 0;
    size += ranges[i].size;
    while (size - ranges[run.first].size >= bytes) {
      size -= ranges[run.first].size;
      run.cost -= ranges[run.first].block ? ranges[run.first].size : 0;
      ++run.first;
    }
    if (size >= bytes) {
      f(run);
    }
  }
}

} // namespace torch::cuda::lms
