#include <torch/csrc/cuda/lms/device/active.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/device/runtime.h>

#if !__has_include(<c10/util/TypeIndex.h>) // before PyTorch 1.4

namespace torch::cuda::lms {

namespace {

compat::cca::native::Active active(c10::DeviceIndex device) {
  Runtime& runtime = Runtime::get();
  Pager* const pager = runtime.settings.enabled ? runtime.find(device) : nullptr;
  return compat::cca::native::active(device, pager ? pager->room.idle_bytes() : 0);
}

} // namespace

void count_active(c10::DeviceIndex device) {
  const Lock lock;
  active(device);
}

int lms_active(int device, int64_t* values) {
  const Lock lock;
  const auto now = active(static_cast<c10::DeviceIndex>(device));
  values[0] = now.current;
  values[1] = now.peak;
  return 0;
}

int lms_reset_active(int device) {
  const Lock lock;
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
