#include <torch/csrc/cuda/lms/kernel/zeroed.h>

#include <torch/csrc/cuda/lms/stream/own_stream.h>

#include <c10/cuda/CUDAException.h>

namespace torch::cuda::lms {

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
  const OwnStream stream;
  C10_CUDA_CHECK(cudaMemsetAsync(allocated, 0, bytes, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return memory;
}

} // namespace torch::cuda::lms
