#pragma once

#include <torch/csrc/cuda/lms/room/runs.h>

#include <vector>

namespace torch::cuda::lms {

// Chooses idle blocks whose page-out, together with the free memory between them, yields at least
// this number of contiguous bytes in a segment from which the stream allocates. Among the possible
// choices, takes the one that moves the fewest bytes. Empty if there is none.
std::vector<Block*> neighbours(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    size_t bytes,
    const Blocks& idle);

} // namespace torch::cuda::lms
