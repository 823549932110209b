#pragma once

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>

namespace torch::cuda::lms {

// The native allocator, as LMS calls it. It has a mutex of its own, and another thread can have
// that while it waits for the device (cudaFree), or while it calls LMS (a callback that frees
// memory). So every call here pauses the LMS mutex of a thread that has it. Memory that is given
// back goes through Lock::drop_later().
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

  compat::cca::DeviceStats stats(c10::DeviceIndex device) const {
    const Lock::Pause pause;
    return allocator_->getDeviceStats(device);
  }
  // Bytes of the largest request that free memory serves; 0 if there is none.
  size_t largest_free(c10::DeviceIndex device) const {
    const Lock::Pause pause;
    size_t largest = 1; // not 0, which would ask for what the device has free besides
    allocator_->cacheInfo(device, &largest);
    return largest > 1 ? largest : 0;
  }
  // The share of the device that may be allocated.
  double fraction(c10::DeviceIndex device) const {
    const Lock::Pause pause;
    return allocator_->getMemoryFraction(device);
  }
  void set_fraction(c10::DeviceIndex device, double fraction) const {
    const Lock::Pause pause;
    const c10::cuda::CUDAGuard guard(device); // it would stay the current one
    allocator_->setMemoryFraction(fraction, device);
  }
  compat::cca::SnapshotInfo snapshot() const {
    const Lock::Pause pause;
    return compat::snapshot(*allocator_);
  }

  // What frees its memory.
  c10::DeleterFnPtr deleter() const {
    return allocator_->raw_deleter();
  }

 private:
  compat::cca::CUDAAllocator* allocator_;
};

} // namespace torch::cuda::lms
