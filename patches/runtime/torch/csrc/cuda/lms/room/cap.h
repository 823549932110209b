#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/room/pools.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

// What the native allocator may take from one device, used or not: the user's limit, and no more
// than the share of the device that this process may have (set_per_process_memory_fraction). The
// native allocator enforces both, as that share. Where running operators alone need more than the
// limit, it gives way; when several iterations' worth has been allocated since, it holds again.
// Under the LMS mutex, which all but bytes() can pause.
class Cap {
 public:
  Cap(c10::DeviceIndex device, const Settings& settings, const Native& native, const Pools& pools)
      : device_(device), settings_(settings), native_(native), pools_(pools) {}

  // Bytes; SIZE_MAX while no limit is set, or one that cannot be kept.
  size_t bytes() const;

  // The user's share of the device, from 0 to 1. The native allocator has it when the second is
  // called.
  double share();
  void share(double fraction);

  // The device has so many bytes. To be called before the others below.
  void total(size_t bytes);

  // The limit is another one.
  void forget() {
    raised_ = 0;
    lifted_ = false;
  }
  // LMS is about to be turned off: from then on nobody tries again.
  void lift() {
    lifted_ = true;
    enforce();
  }

  // To be called when something has changed: the native allocator keeps to the limit from now on,
  // or, while LMS is off or memory goes to a pool, to the share alone. For a pool nothing is paged
  // out, and when a request fails while a graph is captured, the native allocator does, too.
  void enforce();

  // A request for so many bytes failed, with so many reserved, and there is nothing to page out:
  // lets it through. False if it did not fail for the limit.
  bool give_way(size_t reserved, size_t request);

  // How often what is in force has changed. Without the mutex.
  uint64_t changes() const {
    return changes_.load(std::memory_order_acquire);
  }

  // True when it holds again, and did not before.
  bool allocated(size_t bytes);

 private:
  double wanted() const;

  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  const Pools& pools_;
  double share_ = -1; // not known
  double in_force_ = -1;
  size_t total_ = 0; // not known
  size_t raised_ = 0; // what it has given way to; 0 = it holds
  size_t allocated_ = 0; // since then
  bool lifted_ = false;
  std::atomic<uint64_t> changes_{0};
};

} // namespace torch::cuda::lms
