#pragma once

// All differences between versions of torch are in this folder, most of them in this file. If the
// runtime does not compile with a new version, fix it here. Nearly every file includes this one, so
// what needs ATen's headers, which take seconds to compile, has a file of its own.

#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <torch/csrc/cuda/lms/compat/capture.h>
#include <torch/csrc/cuda/lms/compat/shared.h>
#include <torch/version.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#define LMS_TORCH_AT_LEAST(minor) \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

namespace torch::cuda::lms::compat {

namespace cca = c10::cuda::CUDACachingAllocator;

using c10::CachingDeviceAllocator::DeviceStats;

#if LMS_TORCH_AT_LEAST(9)
using MempoolId = c10::MempoolId_t;
#else
using MempoolId = c10::cuda::MempoolId_t;
#endif

// Whether the native allocator can enforce a limit on how much it takes.
constexpr bool kHasFraction = true;

inline at::DataPtr& data_ptr(c10::StorageImpl& storage) {
  return storage._mutable_data_ptr_no_checks();
}

// 0 if they are symbolic: what is traced has no memory.
inline size_t nbytes(const c10::StorageImpl& storage) {
  const auto& bytes = storage.sym_nbytes();
  return bytes.is_heap_allocated() ? 0 : static_cast<size_t>(bytes.as_int_unchecked());
}

// Whether this process has used the device.
inline bool in_use(c10::DeviceIndex device) {
  return c10::cuda::hasPrimaryContext(device);
}

// The flags of a StorageImpl that make accesses throw. Setting them is public since 2.3. Clearing
// them is public since 2.12, but only together with setting the message, which would cost an
// allocation at each operator. An explicit instantiation may name a private member (C++17
// [temp.explicit]/12), so this reaches both flags in every version without copying the layout of
// the class.
template <bool c10::StorageImpl::* Reading, bool c10::StorageImpl::* Writing>
struct AccessFlags {
  friend void set_access_flags(c10::StorageImpl& storage, bool reading, bool writing) {
    storage.*Reading = reading;
    storage.*Writing = writing;
  }
};
template struct AccessFlags<
    &c10::StorageImpl::throw_on_immutable_data_ptr_,
    &c10::StorageImpl::throw_on_mutable_data_ptr_>;
void set_access_flags(c10::StorageImpl& storage, bool reading, bool writing);

// The address of a storage that is paged out.
inline void* nowhere() {
  return nullptr;
}

// Whether the data of all storages can be read without an error; nowhere() is found then.
inline std::atomic<bool> readable{false};

// Call this for a storage whose access is forbidden when `readable` has changed.
inline void update_access(c10::StorageImpl& storage) {
  set_access_flags(storage, /*reading=*/!readable, /*writing=*/readable);
}

// From now on, each access to the data throws c10::Error with this message.
inline void forbid_access(c10::StorageImpl& storage, std::string message) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  update_access(storage);
}

// The setting that makes mutable_data() check these flags stays on. It only costs the slow path of
// the check.
inline void allow_access(c10::StorageImpl& storage) {
  set_access_flags(storage, false, false);
}

// C++ code that does not go through the dispatcher reads addresses without the guard seeing it.
constexpr bool kEveryAccessIsSeen = false;

// Whether autograd records what this thread does.
inline bool grad_mode() {
  return c10::GradMode::is_enabled();
}

// Returns a strong reference for short use under the LMS mutex; null if the storage is being freed.
// In versions in which storages know their Python objects (some time after 2.9), also returns null
// if the Python object is the only owner: WeakStorage::lock() would take the GIL then, and a thread
// that holds the GIL may be waiting for the mutex.
#if LMS_TORCH_AT_LEAST(10)
template <auto Count>
struct ReferenceCount {
  friend std::atomic<uint64_t>& reference_count(c10::StorageImpl& storage) {
    return storage.*Count;
  }
};
template struct ReferenceCount<&c10::intrusive_ptr_target::combined_refcount_>;
std::atomic<uint64_t>& reference_count(c10::StorageImpl& storage);

inline StrongStorage lock(const WeakStorage& weak) {
  auto* const storage = weak._unsafe_get_target();
  std::atomic<uint64_t>& count = reference_count(*storage);
  uint64_t seen = count.load(std::memory_order_relaxed);
  do {
    const auto references = c10::detail::refcount(seen);
    if (references == 0 || (references == 1 && c10::detail::has_pyobject(seen))) {
      return {};
    }
  } while (!count.compare_exchange_weak(
      seen,
      seen + c10::detail::kReferenceCountOne,
      std::memory_order_acquire,
      std::memory_order_relaxed));
  return StrongStorage::reclaim(storage);
}
#else
inline StrongStorage lock(const WeakStorage& weak) {
  return weak.lock();
}
#endif

// A stream that the user created and may destroy (torch.cuda.ExternalStream). Its id is the handle.
// The ids of PyTorch's own streams are odd, and 0 is the default stream.
inline bool is_external(c10::cuda::CUDAStream stream) {
  return stream.id() != 0 && (stream.id() & 1) == 0;
}

// From leave_pool() to enter_pool(), the allocations that the filter accepts do not go to the pool.
inline void leave_pool(cca::CUDAAllocator& allocator, c10::DeviceIndex device, MempoolId pool) {
  allocator.endAllocateToPool(device, pool);
}
inline void enter_pool(
    cca::CUDAAllocator& allocator,
    c10::DeviceIndex device,
    MempoolId pool,
    std::function<bool(cudaStream_t)> filter) {
  allocator.beginAllocateToPool(device, pool, std::move(filter));
  allocator.releasePool(device, pool); // the line before has counted one more user
}

// The native allocator's segments, without their history.
inline cca::SnapshotInfo snapshot(cca::CUDAAllocator& allocator) {
#if LMS_TORCH_AT_LEAST(11)
  return allocator.snapshot({0, 0}, /*include_traces=*/false);
#else
  return allocator.snapshot();
#endif
}

} // namespace torch::cuda::lms::compat
