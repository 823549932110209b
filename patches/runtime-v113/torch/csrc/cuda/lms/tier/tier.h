#pragma once

#include <torch/csrc/cuda/lms/compat/compat.h>

namespace torch::cuda::lms {

// The allocator tier: what PyTorch's calls reach through the seam once LMS was
// turned on. Then it stays; with LMS off it only forwards.
class Tier : public c10::Allocator {
 public:
  // Puts the tier in front of the native allocator, which it returns. Throws
  // c10::Error when the seam was not loaded before PyTorch's libraries.
  static compat::cca::CUDAAllocator* install();

  c10::DataPtr allocate(size_t bytes) const override;
  c10::DeleterFnPtr raw_deleter() const override;
};

} // namespace torch::cuda::lms
