#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/device/pager.h>

#include <array>
#include <atomic>

namespace torch::cuda::lms {

// What there is one of per process: the settings, and a pager for each device in use.
// Never destroyed: storages die after static destructors have run.
class Runtime {
 public:
  static Runtime& get();

  Settings settings;

  // The allocator behind the tier, and who looks at operators; null until LMS is turned on first.
  compat::cca::CUDAAllocator* native = nullptr;
  Attention* attention = nullptr;

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

  std::array<std::atomic<Pager*>, kDevices> pagers_{};
};

} // namespace torch::cuda::lms
