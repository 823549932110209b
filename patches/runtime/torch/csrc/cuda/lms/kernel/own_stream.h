#pragma once

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

namespace torch::cuda::lms {

// A separate stream, so that waiting for it waits for no other work. The destructor waits for its
// work, because what the work uses may be freed next.
class OwnStream {
 public:
  OwnStream() {
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() {
    const bool done = cudaStreamSynchronize(stream_) == cudaSuccess;
    if (cudaStreamDestroy(stream_) != cudaSuccess || !done) {
      (void)cudaGetLastError(); // otherwise PyTorch would report it, for work of its own
    }
  }
  operator cudaStream_t() const {
    return stream_;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

} // namespace torch::cuda::lms
