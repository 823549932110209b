#pragma once

#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <vector>

namespace torch::cuda::lms {

// With expandable segments, the native allocator maps memory in pages. Pages of the device that are
// free as a whole can serve a request of any size, wherever they are, because they are mapped again
// side by side; it does so before a request fails. So what a failed request lacks is a few pages.

// Bytes of the pages that a request occupies.
size_t in_pages(size_t bytes);

// What a large request should be a multiple of, so that it fills its pages; 1 without expandable
// segments.
size_t page_size(const std::vector<compat::cca::SegmentInfo>& segments, c10::DeviceIndex device);

// Chooses idle blocks (given in the order in which they should leave) whose page-out makes this
// number of bytes free in whole pages, together with the pages that are free already. Prefers early
// blocks, and among a few of them the smallest that is enough. Empty if no block is needed, if all
// of them would not be enough, and without expandable segments.
std::vector<Block*> pages(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    size_t bytes,
    const std::vector<Block*>& idle);

} // namespace torch::cuda::lms
