#include <torch/csrc/cuda/lms/host/budget.h>

#include <torch/csrc/cuda/lms/host/host.h>

namespace torch::cuda::lms {

Budget& Budget::get() {
  static auto* const instance = new Budget;
  return *instance;
}

bool Budget::take(size_t bytes, size_t limit, std::string& why) {
  if (limit > 0 && used_ + bytes > limit) {
    why = "the host limit is " + std::to_string(limit) + " bytes and " + std::to_string(used_) +
          " are pinned (torch.cuda.set_host_limit_lms)";
    return false;
  }
  const size_t available = host::available_bytes();
  if (bytes > available) {
    why = "the machine or its container has " + std::to_string(available) +
          " bytes of host memory left";
    return false;
  }
  used_ += bytes;
  return true;
}

void Budget::give(size_t bytes) {
  used_ -= bytes;
}

} // namespace torch::cuda::lms
