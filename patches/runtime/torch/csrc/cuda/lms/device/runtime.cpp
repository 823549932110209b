#include <torch/csrc/cuda/lms/device/runtime.h>

#include <c10/cuda/CUDAGuard.h>

#include <mutex>

namespace torch::cuda::lms {

Runtime& Runtime::get() {
  static auto* const instance = new Runtime;
  return *instance;
}

Pager& Runtime::pager(c10::DeviceIndex device) {
  auto& slot = pagers_.at(static_cast<size_t>(device));
  if (Pager* const pager = slot.load(std::memory_order_acquire)) {
    return *pager;
  }
  // A separate mutex, because callers may hold the LMS mutex.
  static auto* const making = new std::mutex;
  const std::lock_guard<std::mutex> lock(*making);
  if (!slot.load(std::memory_order_acquire)) {
    const c10::cuda::CUDAGuard guard(device);
    slot.store(
        new Pager(device, settings, native, tier, before, *attention), std::memory_order_release);
  }
  return *slot.load(std::memory_order_acquire);
}

Pager* Runtime::find(c10::DeviceIndex device) const {
  return device >= 0 && static_cast<size_t>(device) < kDevices
             ? pagers_[static_cast<size_t>(device)].load(std::memory_order_acquire)
             : nullptr;
}

} // namespace torch::cuda::lms
