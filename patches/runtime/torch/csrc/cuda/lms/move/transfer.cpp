#include <torch/csrc/cuda/lms/move/transfer.h>

namespace torch::cuda::lms {

// The streams are never destroyed, because storages outlive static destructors.
Transfer::Transfer() {
  int lowest = 0;
  int highest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  try {
    // Non-blocking, so that the legacy default stream does not wait for transfers.
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&out_, cudaStreamNonBlocking));
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&in_, cudaStreamNonBlocking));
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&ahead_, cudaStreamNonBlocking, highest));
  } catch (const c10::Error&) {
    for (const cudaStream_t stream : {out_, in_}) {
      if (stream) {
        (void)cudaStreamDestroy(stream); // the next allocation tries again
      }
    }
    throw;
  }
}

EventRef Transfer::page_out(const HostBuffer& host, const void* device, size_t bytes) {
  out_meter_.begins(out_, bytes);
  host.each(bytes, [&](char* part, size_t offset, size_t size) {
    const char* const source = static_cast<const char*>(device) + offset;
    C10_CUDA_CHECK(cudaMemcpyAsync(part, source, size, cudaMemcpyDeviceToHost, out_));
  });
  out_meter_.ends(out_);
  return events_.record(out_);
}

EventRef Transfer::page_in(void* device, const HostBuffer& host, size_t bytes) {
  in_meter_.begins(in_, bytes);
  host.each(bytes, [&](const char* part, size_t offset, size_t size) {
    char* const target = static_cast<char*>(device) + offset;
    C10_CUDA_CHECK(cudaMemcpyAsync(target, part, size, cudaMemcpyHostToDevice, in_));
  });
  in_meter_.ends(in_);
  return events_.record(in_);
}

} // namespace torch::cuda::lms
