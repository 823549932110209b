#include <torch/csrc/cuda/lms/room/limit.h>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

namespace torch::cuda::lms {

namespace {

// Of what PyTorch may take, as in the first LMS; the rest is for fragmentation.
constexpr double kPart = 0.95;

} // namespace

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
  return stretched_ > 0 ? stretched_ : most_ - std::min(most_, headroom_.bytes());
}

size_t Limit::part(double part) {
  if (most_ == 0) {
    look();
  }
  return static_cast<size_t>(static_cast<double>(most_) / kPart * part);
}

void Limit::look() {
  const c10::cuda::CUDAGuard guard(device_);
  const auto reserved = static_cast<size_t>(native_.stats(device_).reserved_bytes[0].current);
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_, &total));
  cap_.total(total);
  const size_t reachable = free_ + reserved;
  const size_t others = total - std::min(total, reachable);
  if (others_ == 0) {
    growth_ = others;
  } else if (others > others_) {
    growth_ = std::max(growth_, others - others_);
  }
  others_ = others;
  spare_ = std::min({growth_, total / 32, reachable / 4});
  const auto most = static_cast<double>(reachable - spare_);
  const double allowed = cap_.share() * static_cast<double>(total);
  const size_t set = settings_.limit;
  const double users = set ? std::min(static_cast<double>(set), allowed) : allowed;
  most_ = std::max<size_t>(static_cast<size_t>(kPart * std::min(most, users)), 1);
  others_decide_ = most < users;
}

bool Limit::look_again() {
  // Not each time, because a look asks the driver.
  constexpr unsigned kExceeded = 16;
  if (!others_decide_ || ++exceeded_ < kExceeded) {
    return false;
  }
  exceeded_ = 0;
  look();
  return true;
}

} // namespace torch::cuda::lms
