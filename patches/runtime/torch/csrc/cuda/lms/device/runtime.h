#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/device/pager.h>

#include <array>
#include <atomic>

namespace torch::cuda::lms {

// The state of the process: the settings, and one pager for each device in use. It is never
// destroyed, because storages are freed even after static destructors have run.
class Runtime {
 public:
  static Runtime& get();

  Settings settings;

  // The allocator behind the tier, and the part that watches operators. Both are null until LMS is
  // turned on for the first time.
  compat::cca::CUDAAllocator* native = nullptr;
  Attention* attention = nullptr;

  // The allocator that new storages have, and that of storages from before LMS. The latter is null
  // if there are none.
  c10::Allocator* tier = nullptr;
  const c10::Allocator* before = nullptr;

  // The pager of a device. Creates it at the first call.
  Pager& pager(c10::DeviceIndex device);

  // The pager of a device; null if there is none yet.
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
