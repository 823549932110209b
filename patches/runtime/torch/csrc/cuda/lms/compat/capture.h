#pragma once

// Captures of graphs, alike in every release that has graphs.

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace torch::cuda::lms::compat {

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// This thread may call what a capture of another one forbids.
class RelaxedCapture {
  c10::cuda::CUDAStreamCaptureModeGuard guard_{cudaStreamCaptureModeRelaxed};
};

} // namespace torch::cuda::lms::compat
