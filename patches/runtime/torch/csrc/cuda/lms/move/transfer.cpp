#include <torch/csrc/cuda/lms/move/transfer.h>

namespace torch::cuda::lms {

void Transfer::wait() const noexcept {
  for (const cudaStream_t stream :
       {cudaStream_t(ahead_),
        out_.relay.stream(),
        cudaStream_t(out_.kernels),
        in_.relay.stream(),
        cudaStream_t(in_.kernels)}) {
    if (cudaStreamSynchronize(stream) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }
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
