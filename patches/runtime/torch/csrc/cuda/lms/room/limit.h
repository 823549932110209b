#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/room/headroom.h>

#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

// How many bytes of one device may be in use: what the user set, or what the device has. Under the
// LMS mutex, which bytes() and look() can pause.
class Limit {
 public:
  Limit(c10::DeviceIndex device, const Settings& settings, const Native& native)
      : device_(device), settings_(settings), native_(native) {}

  // Bytes. The second does not ask the device: 0 if that was not asked before.
  size_t bytes();
  size_t known() const;

  // The settings have changed.
  void forget() {
    automatic_ = spare_ = others_ = 0;
    headroom_ = {};
  }

  // The native allocator has taken memory from the device, or failed to: looks at the device again.
  // What is not PyTorch's grows there, too: handles and workspaces of libraries, kernels that are
  // loaded when they are first used, other processes.
  void look();

  // Bytes that are left to what is not PyTorch's: as much as it took before the first look, more if
  // it has grown by more between two looks, and a 32nd of the device at most.
  size_t spare() const {
    return spare_;
  }
  // Bytes that the device had free when it was last looked at.
  size_t free() const {
    return free_;
  }

  // A request was let through, and failed all the same: what is free lies in pieces.
  void failed() {
    headroom_.failed(automatic_);
  }
  void allocated(size_t bytes) {
    headroom_.allocated(bytes, automatic_);
  }

 private:
  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  size_t automatic_ = 0; // 0 = not known yet
  Headroom headroom_; // below it
  size_t spare_ = 0;
  size_t others_ = 0; // bytes of the device that are not PyTorch's
  size_t free_ = 0;
};

} // namespace torch::cuda::lms
