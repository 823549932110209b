#include <torch/csrc/cuda/lms/move/transfer.h>

namespace torch::cuda::lms {

// That of kernels: those that compress must not wait until compute's have no more to do.
int Transfer::priority() {
  int lowest = 0;
  int highest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return highest;
}

void Transfer::copy_out(
    const HostBuffer& host,
    const void* device,
    size_t bytes,
    cudaStream_t stream) {
  host.each(bytes, [&](char* part, size_t offset, size_t size) {
    const char* const source = static_cast<const char*>(device) + offset;
    C10_CUDA_CHECK(cudaMemcpyAsync(part, source, size, cudaMemcpyDeviceToHost, stream));
  });
}

void Transfer::copy_in(void* device, const HostBuffer& host, size_t bytes, cudaStream_t stream) {
  host.each(bytes, [&](const char* part, size_t offset, size_t size) {
    char* const target = static_cast<char*>(device) + offset;
    C10_CUDA_CHECK(cudaMemcpyAsync(target, part, size, cudaMemcpyHostToDevice, stream));
  });
}

} // namespace torch::cuda::lms
