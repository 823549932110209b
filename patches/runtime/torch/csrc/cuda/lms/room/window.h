#pragma once

#include <torch/csrc/cuda/lms/room/runs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch::cuda::lms {

// Addresses that are free once these blocks have moved to other addresses of the device.
struct Window {
  size_t begin = 0;
  size_t end = 0;
  std::vector<Block*> blocks; // the largest first

  bool contains(const void* memory) const {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    return begin <= address && address < end;
  }
};

// Chooses a window of at least this number of bytes, in a segment from which the stream allocates,
// so that the fewest bytes move. Free memory outside of the window holds what moves. It has no
// blocks if there is no such window, and if the native allocator can serve the request as it is.
// `left` is the number of bytes that it may still take from the device.
Window window(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    size_t bytes,
    size_t left,
    const Blocks& movable);

} // namespace torch::cuda::lms
