#pragma once

// Captures of graphs. The same for every release that has graphs.

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace torch::cuda::lms::compat {

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// Allows this thread to make calls that another thread's capture would forbid.
class RelaxedCapture {
  c10::cuda::CUDAStreamCaptureModeGuard guard_{cudaStreamCaptureModeRelaxed};
};

} // namespace torch::cuda::lms::compat
