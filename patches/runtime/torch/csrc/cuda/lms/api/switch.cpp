#include <torch/csrc/cuda/lms/api/switch.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/device/runtime.h>
#include <torch/csrc/cuda/lms/guard/watch.h>
#include <torch/csrc/cuda/lms/tier/tier.h>

namespace torch::cuda::lms {

void turn_on() {
  Runtime& runtime = Runtime::get();
  const Lock lock;
  if (!runtime.native) {
    runtime.attention = &Watch::get();
    runtime.native = Tier::install();
  }
  if (runtime.settings.enabled) {
    return;
  }
  const c10::DeviceIndex count = runtime.native->initialized() ? c10::cuda::device_count() : 0;
  for (c10::DeviceIndex device = 0; device < count; ++device) {
    if (compat::in_use(device)) {
      runtime.pager(device).enabled();
    }
  }
  if (runtime.settings.enabled) {
    return; // another thread has turned it on meanwhile
  }
  runtime.settings.enabled = true;
  runtime.each([](Pager& pager) {
    pager.room.limit().forget();
    pager.mover.forget_freed();
  });
  Watch::get().start(runtime.settings.limit > 0 || runtime.settings.stress);
}

void turn_off() {
  Runtime& runtime = Runtime::get();
  const Lock lock;
  if (!runtime.settings.enabled) {
    return;
  }
  Watch::get().leave();
  try {
    runtime.each([](Pager& pager) { pager.restore(); });
  } catch (...) {
    Watch::get().stay();
    throw;
  }
  if (!runtime.settings.enabled) {
    return; // another thread has turned it off meanwhile
  }
  Watch::get().stop();
  runtime.each([](Pager& pager) {
    pager.follower.forget();
    pager.room.limit().cap().lift();
  });
  runtime.settings.enabled = false;
}

} // namespace torch::cuda::lms
