#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/room/cap.h>
#include <torch/csrc/cuda/lms/room/headroom.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace torch::cuda::lms {

// How many bytes of one device may be in use before LMS pages out: 95 % of what PyTorch may take,
// or more while a plan is followed. What PyTorch may take depends on the user's limit, the fraction
// of the device that the user allows, and the memory that the device has. Used under the LMS mutex;
// bytes(), shown(), look() and look_again() can pause it.
class Limit {
 public:
  Limit(c10::DeviceIndex device, const Settings& settings, const Native& native, const Pools& pools)
      : device_(device),
        settings_(settings),
        native_(native),
        cap_(device, settings, native, pools) {}

  size_t bytes();
  // The limit that is reported to users: the one that they set, or else bytes(). known() does not
  // ask the device, and is 0 if no limit is set and the device was not asked before.
  size_t shown();
  size_t known() const;

  // From now on, this number of bytes can be in use: for plans, which know what comes. 0 returns to
  // the default.
  void stretch(size_t bytes) {
    stretched_ = bytes;
  }
  // A part of what PyTorch may take, in bytes.
  size_t part(double part);

  // The part that makes the native allocator enforce the limit.
  Cap& cap() {
    return cap_;
  }
  const Cap& cap() const {
    return cap_;
  }

  // Call this when the user's settings have changed.
  void forget() {
    most_ = spare_ = growth_ = others_ = 0;
    headroom_ = {};
    cap_.forget();
    changed_ = true;
  }
  // Whether the limit was changed since the last call, so that more may be reserved than it allows.
  bool take_changed() {
    return std::exchange(changed_, false);
  }

  // Asks the device how much memory is free. Call this when the native allocator has taken memory
  // from the device, or failed to. Memory that is not PyTorch's also grows at these times: handles
  // and workspaces of libraries, kernels that are loaded at their first use, other processes.
  void look();

  // Call this when the limit is exceeded. Other users of the device may have freed memory since the
  // last look. If they are the reason why PyTorch gets less than the user allows, every few calls
  // this function looks again. Returns true if it did.
  bool look_again();

  // Bytes that LMS leaves free for memory that is not PyTorch's: what this memory took before the
  // first look, or the most by which it grew between two looks, whichever is more; at most a 32nd
  // of the device, and a quarter of what PyTorch can take.
  size_t spare() const {
    return spare_;
  }
  // Bytes that were free on the device at the last look.
  size_t free() const {
    return free_;
  }

  // Call this when a request failed although it was within the limit: free memory is fragmented.
  void failed() {
    headroom_.failed(most_);
  }
  void allocated(size_t bytes) {
    headroom_.allocated(bytes, most_);
    changed_ = cap_.allocated(bytes) || changed_;
  }

 private:
  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  Cap cap_;
  size_t most_ = 0; // bytes() by default, without the headroom subtracted; 0 if not known yet
  size_t stretched_ = 0; // see stretch()
  Headroom headroom_;
  bool changed_ = false;
  // PyTorch gets less than the user allows, because others use the device.
  bool others_decide_ = false;
  unsigned exceeded_ = 0; // calls of look_again() since the last look
  size_t spare_ = 0;
  size_t growth_ = 0; // the most bytes by which others_ grew between two looks
  size_t others_ = 0; // bytes of the device that are in use, but not by PyTorch
  size_t free_ = 0;
};

} // namespace torch::cuda::lms
