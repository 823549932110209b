#include <torch/csrc/cuda/lms/device/active.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/device/runtime.h>

#if !__has_include(<c10/util/TypeIndex.h>) // before PyTorch 1.4

namespace torch::cuda::lms {

namespace {

// The native allocator's mutex must not be taken while the LMS mutex is held: see base/native.h.
compat::cca::native::Active active(c10::DeviceIndex device) {
  size_t idle = 0;
  {
    const Lock lock;
    Runtime& runtime = Runtime::get();
    Pager* const pager = runtime.settings.enabled ? runtime.find(device) : nullptr;
    idle = pager ? pager->room.idle_bytes() : 0;
  }
  return compat::cca::native::active(device, idle);
}

} // namespace

void count_active(c10::DeviceIndex device) {
  active(device);
}

int lms_active(int device, int64_t* values) {
  const auto now = active(static_cast<c10::DeviceIndex>(device));
  values[0] = now.current;
  values[1] = now.peak;
  return 0;
}

int lms_reset_active(int device) {
  compat::cca::native::reset_active(device);
  active(static_cast<c10::DeviceIndex>(device));
  return 0;
}

int lms_reset_reclaimed(int device) {
  const Lock lock;
  if (Pager* const pager = Runtime::get().find(static_cast<c10::DeviceIndex>(device))) {
    pager->stats.page_out_bytes = 0;
  }
  return 0;
}

int lms_reset_alloc_distribution(int device) {
  const Lock lock;
  if (Pager* const pager = Runtime::get().find(static_cast<c10::DeviceIndex>(device))) {
    pager->stats.alloc_distribution.fill(0);
  }
  return 0;
}

} // namespace torch::cuda::lms

#endif
