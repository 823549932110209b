#pragma once

#include <torch/csrc/cuda/lms/host/buffer.h>

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <cstddef>

namespace torch::cuda::lms {

// Issue copies between device memory and the bytes from `begin` to `end` of a host buffer, one for
// each part. Throw c10::Error if CUDA refuses.

inline void copy_to_host(
    const HostBuffer& host,
    size_t begin,
    size_t end,
    const void* device,
    cudaStream_t stream) {
  host.each(begin, end, [&](char* part, size_t offset, size_t size) {
    const char* const source = static_cast<const char*>(device) + offset;
    C10_CUDA_CHECK(cudaMemcpyAsync(part, source, size, cudaMemcpyDeviceToHost, stream));
  });
}

inline void copy_to_device(
    const HostBuffer& host,
    size_t begin,
    size_t end,
    void* device,
    cudaStream_t stream) {
  host.each(begin, end, [&](char* part, size_t offset, size_t size) {
    char* const target = static_cast<char*>(device) + offset;
    C10_CUDA_CHECK(cudaMemcpyAsync(target, part, size, cudaMemcpyHostToDevice, stream));
  });
}

} // namespace torch::cuda::lms
