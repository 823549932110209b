#pragma once

// What the tiers of all releases do alike.

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/device/runtime.h>
#include <torch/csrc/cuda/lms/guard/guard.h>
#include <torch/csrc/cuda/lms/guard/watch.h>

#include <c10/cuda/CUDAFunctions.h>

#include <optional>

namespace torch::cuda::lms {

inline const void* address_of(const void* memory) {
  return memory;
}
inline const void* address_of(const c10::DataPtr& memory) {
  return memory.get();
}

// The pager to ask for memory on the current device, or null: LMS is off, or
// this is the native allocator's own affair (a callback under the mutex), or a
// child process, which has no device.
inline Pager* current_pager() {
  Runtime& runtime = Runtime::get();
  if (!runtime.settings.enabled || Lock::held() || Lock::forked()) {
    return nullptr;
  }
  return &runtime.pager(c10::cuda::current_device());
}

// Calls the native allocator where there is no pager to ask. Another thread may have turned LMS on
// meanwhile; if the memory was free after that, this thread sees it, too: the native allocator's
// mutex is between the two.
template <class Allocate>
auto past_pagers(size_t bytes, Allocate allocate) {
  auto memory = allocate();
  Runtime& runtime = Runtime::get();
  if (FreedMemory::knows(bytes) && runtime.settings.enabled && !Lock::forked()) {
    if (Pager* const pager = runtime.find(c10::cuda::current_device())) {
      std::optional<Lock> lock;
      if (!Lock::held()) {
        lock.emplace();
      }
      pager->mover.taken(address_of(memory), bytes);
    }
  }
  return memory;
}

// A stream uses memory; false when it is not the pager's.
inline bool record_managed(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get_deleter() != &Registry::deleter) {
    return false;
  }
  const Lock lock;
  auto& block = *static_cast<Block*>(data.get_context());
  block.pager.mover.record_stream(block, stream);
  return true;
}

// Memory that is cached on the host goes back to the system with the device's.
inline void trim_host() {
  const Lock lock;
  Runtime::get().each([](Pager& pager) { pager.mover.trim_host(); });
}

// Allocations that the filter takes go to a pool from now on.
inline void pool_began(Pager& pager, compat::MempoolId pool, Pools::Filter filter) {
  const Lock lock;
  Watch::get().begin(); // a graph replays what its operators used
  pager.pools.begin(pool, std::move(filter), c10::cuda::getCurrentCUDAStream(pager.device));
  pager.room.limit().cap().enforce();
  Guard::keep_pinned(pager);
}

inline void pool_ended(Pager& pager, compat::MempoolId pool) {
  pager.pools.end(pool);
  const Lock lock;
  pager.room.limit().cap().enforce();
}

// The native allocator has got another share of the device.
inline void fraction_changed(c10::DeviceIndex device, double fraction) {
  const Lock lock;
  if (Pager* const pager = Runtime::get().find(device)) {
    Limit& limit = pager->room.limit();
    limit.cap().share(fraction);
    limit.forget();
  }
}

} // namespace torch::cuda::lms
