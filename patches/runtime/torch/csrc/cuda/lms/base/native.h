#pragma once

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>

namespace torch::cuda::lms {

// How LMS calls the native allocator. The native allocator has its own mutex, and another thread
// can hold that mutex while it waits for the device (cudaFree) or while it calls LMS (from a
// callback that frees memory). Therefore every call here pauses the LMS mutex if the thread holds
// it. Memory is given back with Lock::drop_later().
class Native {
 public:
  explicit Native(compat::cca::CUDAAllocator* allocator) : allocator_(allocator) {}

  // Throws c10::OutOfMemoryError.
  at::DataPtr allocate(size_t bytes) const {
    const Lock::Pause pause;
    return allocator_->allocate(bytes);
  }
  void* raw_allocate(size_t bytes, cudaStream_t stream) const {
    const Lock::Pause pause;
    return allocator_->raw_alloc_with_stream(bytes, stream);
  }
  void record_stream(const at::DataPtr& memory, c10::cuda::CUDAStream stream) const {
    const Lock::Pause pause;
    allocator_->recordStream(memory, stream);
  }
  // Waits for the device.
  void empty_cache() const {
    const Lock::Pause pause;
    allocator_->emptyCache();
  }

  // The next allocations do not go to the pool, until enter_pool() is called.
  void leave_pool(c10::DeviceIndex device, compat::MempoolId pool) const {
    const Lock::Pause pause;
    compat::leave_pool(*allocator_, device, pool);
  }
  template <class Filter>
  void enter_pool(c10::DeviceIndex device, compat::MempoolId pool, const Filter& filter) const {
    const Lock::Pause pause;
    compat::enter_pool(*allocator_, device, pool, filter);
  }

  compat::cca::DeviceStats stats(c10::DeviceIndex device) const {
    const Lock::Pause pause;
    return allocator_->getDeviceStats(device);
  }
  // Size in bytes of the largest request that can be served from free memory; 0 if there is none.
  size_t largest_free(c10::DeviceIndex device) const {
    const Lock::Pause pause;
    size_t largest = 1; // with 0 it would also ask the device how much memory is free
    allocator_->cacheInfo(device, &largest);
    return largest > 1 ? largest : 0;
  }
  // The fraction of the device's memory that may be allocated.
  double fraction(c10::DeviceIndex device) const {
    const Lock::Pause pause;
    return allocator_->getMemoryFraction(device);
  }
  void set_fraction(c10::DeviceIndex device, double fraction) const {
    const Lock::Pause pause;
    const c10::cuda::CUDAGuard guard(device); // setMemoryFraction() leaves the device current
    allocator_->setMemoryFraction(fraction, device);
  }
  compat::cca::SnapshotInfo snapshot() const {
    const Lock::Pause pause;
    return compat::snapshot(*allocator_);
  }

  // The deleter of the native allocator's memory.
  c10::DeleterFnPtr deleter() const {
    return allocator_->raw_deleter();
  }

 private:
  compat::cca::CUDAAllocator* allocator_;
};

} // namespace torch::cuda::lms
