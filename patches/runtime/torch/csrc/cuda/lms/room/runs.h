#pragma once

#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <cstddef>
#include <map>
#include <vector>

namespace torch::cuda::lms {

// Blocks by address.
using Blocks = std::map<size_t, Block*>;

// Whether the native allocator serves requests of this stream, but none to a private pool, from the
// segment.
inline bool
serves(const compat::cca::SegmentInfo& segment, c10::DeviceIndex device, cudaStream_t stream) {
  return segment.device == device && segment.stream == stream &&
         segment.owner_private_pool_id == compat::MempoolId{0, 0};
}

// Adjacent ranges of a segment that are free, or will be when their blocks have left.
struct Run {
  size_t begin; // address
  size_t end;
  size_t cost; // bytes of its blocks
};

// Calls f(run) for each run of at least this number of bytes, of which no range at its begin is
// needless, in a segment.
template <class Segment, class F>
void each_run(const Segment& segment, size_t bytes, const Blocks& blocks, F f) {
  struct Range {
    size_t size;
    bool block;
  };
  std::vector<Range> ranges; // that are adjacent, up to the current one
  size_t first = 0; // index of the first of them that is needed
  Run run{};
  size_t address = segment.address;
  for (const auto& range : segment.blocks) {
    const bool free = !range.allocated && !range.active;
    const bool block = !free && blocks.count(address) > 0;
    if (ranges.empty()) {
      run = {address, address, 0};
    }
    address += range.size;
    if (!free && !block) {
      ranges.clear();
      first = 0;
      continue;
    }
    ranges.push_back({static_cast<size_t>(range.size), block});
    run.end = address;
    run.cost += block ? range.size : 0;
    while (run.end - run.begin - ranges[first].size >= bytes) {
      run.begin += ranges[first].size;
      run.cost -= ranges[first].block ? ranges[first].size : 0;
      ++first;
    }
    if (run.end - run.begin >= bytes) {
      f(run);
    }
  }
}

} // namespace torch::cuda::lms
