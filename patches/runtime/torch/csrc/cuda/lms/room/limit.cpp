#include <torch/csrc/cuda/lms/room/limit.h>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace torch::cuda::lms {

size_t Limit::known() const {
  const size_t set = settings_.limit;
  return set ? set : automatic_ - std::min(automatic_, headroom_.bytes());
}

size_t Limit::bytes() {
  if (settings_.limit == 0 && automatic_ == 0) {
    look();
  }
  return known();
}

void Limit::look() {
  const c10::cuda::CUDAGuard guard(device_);
  const auto reserved = static_cast<size_t>(native_.stats(device_).reserved_bytes[0].current);
  const double share = native_.fraction(device_);
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_, &total));
  const size_t others = total - std::min(total, free_ + reserved);
  if (others_ == 0) {
    spare_ = std::min(others, total / 32);
  } else if (others > others_) {
    spare_ = std::min(std::max(spare_, others - others_), total / 32);
  }
  others_ = others;
  const double reachable =
      static_cast<double>(free_ + reserved - std::min(spare_, free_ + reserved));
  // 95 %, as the first LMS: the rest is for fragmentation.
  automatic_ = static_cast<size_t>(0.95 * std::min(reachable, share * static_cast<double>(total)));
}

} // namespace torch::cuda::lms
