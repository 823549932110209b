#pragma once

#include <torch/csrc/cuda/lms/pager.h>
#include <torch/csrc/cuda/lms/settings.h>

#include <array>
#include <atomic>

namespace torch::cuda::lms {

// What there is one of per process: the settings, the allocator tier, the
// operator guard's registration, and a pager for each device in use.
// Never destroyed: storages die after static destructors have run.
class Runtime {
 public:
  static Runtime& get();

  Settings settings;

  // Puts the tier in front of the native allocator and starts the guard.
  // Works before CUDA is initialized and without a device. Throws c10::Error
  // when the allocator in use is not the native one.
  void enable();

  // Stops the guard and brings every storage back to its device. Throws
  // c10::OutOfMemoryError, with LMS still on, when they do not fit.
  void disable();

  // The allocator behind the tier; null until the first enable().
  cca::CUDAAllocator* native() const {
    return native_;
  }

  // The pager of a device, made at the first call.
  Pager& pager(c10::DeviceIndex device);

  // The pager of a device, or null.
  Pager* find(c10::DeviceIndex device) const;

  template <class F>
  void each(F f) const {
    for (const auto& slot : pagers_) {
      if (Pager* pager = slot.load(std::memory_order_acquire)) {
        f(*pager);
      }
    }
  }

 private:
  Runtime() = default;

  static constexpr size_t kDevices = 128;

  cca::CUDAAllocator* native_ = nullptr;
  std::array<std::atomic<Pager*>, kDevices> pagers_{};
};

} // namespace torch::cuda::lms
