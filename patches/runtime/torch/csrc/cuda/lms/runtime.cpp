#include <torch/csrc/cuda/lms/runtime.h>

#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/tier.h>
#include <torch/csrc/cuda/lms/watch.h>

#include <c10/cuda/CUDAGuard.h>

#include <mutex>

namespace torch::cuda::lms {

Runtime& Runtime::get() {
  static auto* const instance = new Runtime;
  return *instance;
}

void Runtime::enable() {
  const Lock lock;
  if (!native_) {
    native_ = Tier::install();
  }
  if (settings.enabled) {
    return;
  }
  const c10::DeviceIndex count = native_->initialized() ? c10::cuda::device_count() : 0;
  for (c10::DeviceIndex device = 0; device < count; ++device) {
    if (compat::in_use(device)) {
      pager(device).enabled();
    }
  }
  settings.enabled = true;
  Watch::start(settings.limit > 0 || settings.stress || settings.distributed);
}

void Runtime::disable() {
  const Lock lock;
  if (!settings.enabled) {
    return;
  }
  each([](Pager& pager) { pager.restore(); });
  Watch::stop();
  settings.enabled = false;
}

Pager& Runtime::pager(c10::DeviceIndex device) {
  auto& slot = pagers_.at(static_cast<size_t>(device));
  if (Pager* const pager = slot.load(std::memory_order_acquire)) {
    return *pager;
  }
  // Not the LMS mutex: callers may hold it.
  static auto* const making = new std::mutex;
  const std::lock_guard<std::mutex> lock(*making);
  if (!slot.load(std::memory_order_acquire)) {
    const c10::cuda::CUDAGuard guard(device);
    slot.store(new Pager(device, settings, native_), std::memory_order_release);
  }
  return *slot.load(std::memory_order_acquire);
}

Pager* Runtime::find(c10::DeviceIndex device) const {
  return device >= 0 && static_cast<size_t>(device) < kDevices
             ? pagers_[static_cast<size_t>(device)].load(std::memory_order_acquire)
             : nullptr;
}

} // namespace torch::cuda::lms
