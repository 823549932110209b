#pragma once

#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <unordered_map>
#include <vector>

namespace torch::cuda::lms {

// The idle blocks (by address) to page out so that, with the free memory
// between them, so many bytes lie side by side in a segment that the stream
// allocates from; those that move the fewest bytes. Empty when there are none.
std::vector<Block*> neighbours(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    size_t bytes,
    const std::unordered_map<size_t, Block*>& idle);

} // namespace torch::cuda::lms
