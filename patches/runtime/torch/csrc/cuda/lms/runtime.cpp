#include <torch/csrc/cuda/lms/runtime.h>

#include <torch/csrc/cuda/lms/guard.h>
#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/tier.h>

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
    cca::CUDAAllocator* const allocator = cca::get();
    TORCH_CHECK(
        allocator && allocator->name() == "native",
        "LMS needs PyTorch's native CUDA caching allocator, and the one in use is ",
        allocator ? allocator->name() : "none",
        ". Unset PYTORCH_CUDA_ALLOC_CONF=backend:... and do not change the current allocator.");
    native_ = allocator;
    // Never destroyed: storages keep a pointer to their allocator.
    auto* const tier = new Tier(allocator);
    cca::allocator.store(tier);
    // Storages remember the allocator to resize with, and newer versions of
    // PyTorch find the caching allocator here.
    c10::SetAllocator(c10::DeviceType::CUDA, tier, /*priority=*/100);
  }
  if (settings.enabled) {
    return;
  }
  const c10::DeviceIndex count = native_->initialized() ? c10::cuda::device_count() : 0;
  for (c10::DeviceIndex device = 0; device < count; ++device) {
    if (c10::cuda::hasPrimaryContext(device)) {
      pager(device).enabled();
    }
  }
  settings.enabled = true;
  Guard::install();
}

void Runtime::disable() {
  const Lock lock;
  if (!settings.enabled) {
    return;
  }
  each([](Pager& pager) { pager.restore(); });
  Guard::remove();
  settings.enabled = false;
}

Pager& Runtime::pager(c10::DeviceIndex device) {
  auto& slot = pagers_.at(static_cast<size_t>(device));
  if (Pager* const pager = slot.load()) {
    return *pager;
  }
  // Not the LMS mutex: callers may hold it.
  static auto* const making = new std::mutex;
  const std::lock_guard<std::mutex> lock(*making);
  if (!slot.load()) {
    const c10::cuda::CUDAGuard guard(device);
    slot.store(new Pager(device, settings, native_));
  }
  return *slot.load();
}

Pager* Runtime::find(c10::DeviceIndex device) const {
  return device >= 0 && static_cast<size_t>(device) < kDevices
             ? pagers_[static_cast<size_t>(device)].load()
             : nullptr;
}

} // namespace torch::cuda::lms
