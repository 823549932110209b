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

} // namespace torch::cuda::lms
