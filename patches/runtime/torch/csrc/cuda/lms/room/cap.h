#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/room/pools.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

// How much the native allocator may reserve on one device, in use or not: the user's limit, and at
// most the fraction of the device that this process may have (set_per_process_memory_fraction). The
// native allocator enforces both as one fraction. If running operators alone need more than the
// limit, the limit gives way. It is restored when several iterations' worth of memory has been
// allocated since. Used under the LMS mutex; all functions except bytes() can pause it.
class Cap {
 public:
  Cap(c10::DeviceIndex device, const Settings& settings, const Native& native, const Pools& pools)
      : device_(device), settings_(settings), native_(native), pools_(pools) {}

  // In bytes; SIZE_MAX if no limit is set, or one that is too low to be enforced.
  size_t bytes() const;

  // The user's fraction of the device, from 0 to 1. When share(fraction) is called, the native
  // allocator has already been given it.
  double share();
  void share(double fraction);

  // Sets the size of the device in bytes. Call this before the functions below.
  void total(size_t bytes);

  // Call this when the user's limit has changed.
  void forget() {
    raised_ = needed_ = 0;
    lifted_ = false;
  }
  // Called before LMS is turned off: from then on nobody retries a request that fails.
  void lift() {
    lifted_ = true;
    enforce();
  }

  // Call this when something has changed: makes the native allocator keep to the limit from now on.
  // While LMS is off or memory goes to a pool, only the user's fraction is enforced: nothing is
  // paged out for a pool, and if a request fails while a graph is captured, the native allocator
  // fails, too.
  void enforce();

  // A request for `request` bytes failed while `reserved` bytes were reserved, and nothing can be
  // paged out. Raises the limit so that the request can succeed. Returns false if the limit was not
  // the reason for the failure.
  bool give_way(size_t reserved, size_t request);

  // A plan needs this number of bytes more than `reserved`, because one operator alone needs more
  // than the limit. The limit is not restored below that until this is called with 0.
  void need(size_t reserved, size_t bytes);

  // How many bytes the native allocator may still take from the device while this number of bytes
  // is reserved.
  size_t left(size_t reserved) const;

  // Bytes of the largest request for which it may.
  size_t largest(size_t reserved) const;

  // Whether the native allocator tries to take memory from the device for a request. It compares
  // all of the request's bytes with the limit, even if some of them have pages already.
  bool admits(size_t reserved, size_t request) const;
  // From now on until close(), it tries. The caller knows that the limit is kept.
  void open(size_t reserved, size_t request);
  void close() {
    if (opened_ != 0) {
      opened_ = 0;
      enforce();
    }
  }

  // How often the enforced value has changed. Can be called without the mutex.
  uint64_t changes() const {
    return changes_.load(std::memory_order_acquire);
  }

  // Returns true if the user's limit is restored by this call.
  bool allocated(size_t bytes);

 private:
  double wanted() const;

  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  const Pools& pools_;
  double share_ = -1; // -1 if not known
  double in_force_ = -1;
  size_t total_ = 0; // bytes of the device; 0 if not known
  size_t raised_ = 0; // the limit after it gave way; 0 if it did not
  size_t needed_ = 0; // the least that it is restored to
  size_t opened_ = 0; // the limit until close(); 0 if it is not open
  size_t allocated_ = 0; // bytes, since it gave way
  bool lifted_ = false;
  std::atomic<uint64_t> changes_{0};
};

} // namespace torch::cuda::lms
