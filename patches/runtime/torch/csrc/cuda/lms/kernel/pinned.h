#pragma once

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

namespace torch::cuda::lms {

// At process exit, the driver may already be unloaded. The error can be ignored then.
struct PinnedFree {
  void operator()(void* memory) const {
    if (cudaFreeHost(memory) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }
};
using PinnedMemory = std::unique_ptr<void, PinnedFree>;

// Host memory that kernels of every device can use. Throws c10::Error if there is none.
inline PinnedMemory pinned(size_t bytes) {
  void* memory = nullptr;
  C10_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  return PinnedMemory(memory);
}

} // namespace torch::cuda::lms
