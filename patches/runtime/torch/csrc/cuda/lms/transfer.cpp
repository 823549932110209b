#include <torch/csrc/cuda/lms/transfer.h>

namespace torch::cuda::lms {

// The streams live as long as the process: a Pager is never destroyed, because
// storages outlive static destructors.
Transfer::Transfer() {
  // Non-blocking: the legacy default stream must not wait for transfers.
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&out_, cudaStreamNonBlocking));
  const cudaError_t error = cudaStreamCreateWithFlags(&in_, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    (void)cudaStreamDestroy(out_); // the next allocation tries again
  }
  C10_CUDA_CHECK(error);
}

EventRef Transfer::page_out(const HostBuffer& host, const void* device, size_t bytes) {
  host.each(bytes, [&](char* part, size_t offset, size_t size) {
    const char* const source = static_cast<const char*>(device) + offset;
    C10_CUDA_CHECK(cudaMemcpyAsync(part, source, size, cudaMemcpyDeviceToHost, out_));
  });
  return events_.record(out_);
}

EventRef Transfer::page_in(void* device, const HostBuffer& host, size_t bytes) {
  host.each(bytes, [&](const char* part, size_t offset, size_t size) {
    char* const target = static_cast<char*>(device) + offset;
    C10_CUDA_CHECK(cudaMemcpyAsync(target, part, size, cudaMemcpyHostToDevice, in_));
  });
  return events_.record(in_);
}

} // namespace torch::cuda::lms
