#pragma once

#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <unordered_map>
#include <vector>

namespace torch::cuda::lms {

// Chooses idle blocks (given by address) whose page-out, together with the free memory between
// them, yields at least this number of contiguous bytes in a segment from which the stream
// allocates. Among the possible choices, takes the one that moves the fewest bytes. Empty if there
// is none.
std::vector<Block*> neighbours(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    size_t bytes,
    const std::unordered_map<size_t, Block*>& idle);

} // namespace torch::cuda::lms
