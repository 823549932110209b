#pragma once

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

namespace torch::cuda::lms {

// A separate stream, so that waiting for it waits for no other work; not even the legacy default
// stream does. The destructor waits for its work, because what the work uses may be freed next.
class OwnStream {
 public:
  // The lower the number, the higher the priority. 0 is the lowest.
  explicit OwnStream(int priority = 0) {
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  // Kernels that move data must not wait until compute's have no more to do.
  static int highest() {
    int lowest = 0;
    int highest = 0;
    C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    return highest;
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
