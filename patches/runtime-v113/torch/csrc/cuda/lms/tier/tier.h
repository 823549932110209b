#pragma once

#include <torch/csrc/cuda/lms/compat/compat.h>

namespace torch::cuda::lms {

// The allocator tier. PyTorch's calls reach it through the seam once LMS was turned on. From then
// on it stays; while LMS is off, it only forwards calls.
class Tier : public c10::Allocator {
 public:
  // Puts the tier in front of the native allocator, and returns the latter. Throws c10::Error if
  // the seam was not loaded before PyTorch's libraries.
  static compat::cca::CUDAAllocator* install();

  c10::DataPtr allocate(size_t bytes) const override;
  c10::DeleterFnPtr raw_deleter() const override;
};

} // namespace torch::cuda::lms
