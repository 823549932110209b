#pragma once

#include <cuda_runtime_api.h>

namespace torch::cuda::lms::compat {

// PyTorch 1.x has no CUDA graphs.
inline bool is_capturing(cudaStream_t /*stream*/) {
  return false;
}

class RelaxedCapture {
 public:
  RelaxedCapture() {}
};

} // namespace torch::cuda::lms::compat
