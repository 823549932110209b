#include <torch/csrc/cuda/lms/room/limit.h>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace torch::cuda::lms {

size_t Limit::known() const {
  const size_t set = settings_.limit;
  return set ? set : most_ - std::min(most_, headroom_.bytes());
}

size_t Limit::shown() {
  bytes();
  return known();
}

size_t Limit::bytes() {
  if (most_ == 0) {
    look();
  }
  cap_.enforce();
  return most_ - std::min(most_, headroom_.bytes());
}

void Limit::look() {
  const c10::cuda::CUDAGuard guard(device_);
  const auto reserved = static_cast<size_t>(native_.stats(device_).reserved_bytes[0].current);
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_, &total));
  cap_.total(total);
  const size_t others = total - std::min(total, free_ + reserved);
  if (others_ == 0) {
    spare_ = std::min(others, total / 32);
  } else if (others > others_) {
    spare_ = std::min(std::max(spare_, others - others_), total / 32);
  }
  others_ = others;
  const double reachable =
      static_cast<double>(free_ + reserved - std::min(spare_, free_ + reserved));
  const double allowed = cap_.share() * static_cast<double>(total);
  const size_t set = settings_.limit;
  const double limit = set ? static_cast<double>(set) : reachable;
  // 95 %, as the first LMS: the rest is for fragmentation.
  most_ = std::max<size_t>(static_cast<size_t>(0.95 * std::min({reachable, allowed, limit})), 1);
}

} // namespace torch::cuda::lms
