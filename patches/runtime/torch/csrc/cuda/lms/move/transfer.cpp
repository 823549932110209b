#include <torch/csrc/cuda/lms/move/transfer.h>

namespace torch::cuda::lms {

// The streams are never destroyed, because storages outlive static destructors.
Transfer::Transfer() {
  int lowest = 0;
  int highest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  try {
    // Non-blocking, so that the legacy default stream does not wait for transfers. The priority is
    // that of kernels: those that compress must not wait until compute's have no more to do.
    for (cudaStream_t* const stream : {&out_, &in_, &ahead_}) {
      C10_CUDA_CHECK(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest));
    }
  } catch (const c10::Error&) {
    for (const cudaStream_t stream : {out_, in_}) {
      if (stream) {
        (void)cudaStreamDestroy(stream); // the next allocation tries again
      }
    }
    throw;
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
