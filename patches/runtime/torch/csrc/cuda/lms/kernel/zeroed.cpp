#include <torch/csrc/cuda/lms/kernel/zeroed.h>

#include <c10/cuda/CUDAException.h>

namespace torch::cuda::lms {

namespace {

// A separate stream, so that waiting for it waits for no other work.
class Stream {
 public:
  Stream() {
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (cudaStreamDestroy(stream_) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }
  operator cudaStream_t() const {
    return stream_;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

} // namespace

// At process exit, the driver may already be unloaded. The error can be ignored then.
void DeviceFree::operator()(void* memory) const {
  if (cudaFree(memory) != cudaSuccess) {
    (void)cudaGetLastError();
  }
}

DeviceMemory zeroed(size_t bytes) {
  void* allocated = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&allocated, bytes));
  DeviceMemory memory(allocated);
  const Stream stream;
  C10_CUDA_CHECK(cudaMemsetAsync(allocated, 0, bytes, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return memory;
}

} // namespace torch::cuda::lms
