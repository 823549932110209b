#pragma once

// The parts of the tier that are the same in all releases.

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

// The pager of the current device. Null if LMS is off, if the native allocator itself asks (in a
// callback under the LMS mutex), or in a forked process, which cannot use the device.
inline Pager* current_pager() {
  Runtime& runtime = Runtime::get();
  if (!runtime.settings.enabled || Lock::held() || Lock::forked()) {
    return nullptr;
  }
  return &runtime.pager(c10::cuda::current_device());
}

// Calls the native allocator when there is no pager to ask. Another thread may turn LMS on in the
// meantime. If the memory that is returned was freed after that, this thread also sees that LMS is
// on, because both threads have used the native allocator's mutex.
template <class Allocate>
auto past_pagers(size_t bytes, Allocate allocate) {
  auto memory = allocate();
  Runtime& runtime = Runtime::get();
  const bool freed = FreedMemory::knows(bytes) && runtime.settings.enabled;
  if ((freed || Pager::asks_for_memory()) && !Lock::forked()) {
    if (Pager* const pager = runtime.find(c10::cuda::current_device())) {
      std::optional<Lock> lock;
      if (!Lock::held()) {
        lock.emplace();
      }
      pager->handed_out(address_of(memory));
      if (freed) {
        pager->mover.taken(address_of(memory), bytes);
      }
    }
  }
  return memory;
}

// Records that a stream uses memory. Returns false if LMS does not manage the memory.
inline bool record_managed(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get_deleter() != &Registry::deleter) {
    return false;
  }
  const Lock lock;
  auto& block = *static_cast<Block*>(data.get_context());
  block.pager.record_stream(block, stream);
  return true;
}

// Gives back what the device has finished with. The mutex must be held.
inline void collect(Pager& pager) {
  if (!pager.pools.capturing()) {
    const c10::cuda::CUDAGuard guard(pager.device);
    pager.mover.collect();
  }
}

// Before the cache of device memory is emptied, memory that the device has finished with becomes a
// part of it.
inline void give_back_limbo() {
  if (Lock::held() || Lock::forked()) {
    return;
  }
  const Lock lock;
  Runtime::get().each(collect);
}

// When the cache of device memory is emptied, unused pinned host memory is returned to the system,
// too.
inline void trim_host() {
  const Lock lock;
  Runtime::get().each([](Pager& pager) { pager.mover.supply().trim(); });
}

// From now on, allocations that the filter accepts go to a pool.
inline void pool_began(Pager& pager, compat::MempoolId pool, Pools::Filter filter) {
  const Lock lock;
  Watch::get().begin(); // a graph replays what its operators used
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(pager.device);
  const bool capture = pager.pools.begin(pool, std::move(filter), current);
  pager.room.limit().cap().enforce();
  if (capture && Runtime::get().settings.enabled) {
    Guard::keep_pinned(pager);
  } else if (capture) {
    pager.captured_unseen();
  }
}

inline void pool_ended(Pager& pager, compat::MempoolId pool) {
  pager.pools.end(pool);
  const Lock lock;
  pager.room.limit().cap().enforce();
  collect(pager); // what died meanwhile, perhaps while LMS was off
}

// Called when the fraction of the device that the native allocator may use was changed.
inline void fraction_changed(c10::DeviceIndex device, double fraction) {
  const Lock lock;
  if (Pager* const pager = Runtime::get().find(device)) {
    Limit& limit = pager->room.limit();
    limit.cap().share(fraction);
    limit.forget();
  }
}

} // namespace torch::cuda::lms
