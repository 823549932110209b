#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/room/cap.h>
#include <torch/csrc/cuda/lms/room/headroom.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace torch::cuda::lms {

// How many bytes of one device may be in use before something is paged out: 95 % of what the user's
// limit, his share of the device and what it has allow PyTorch to take. Under the LMS mutex, which
// bytes(), shown(), look() and look_again() can pause.
class Limit {
 public:
  Limit(c10::DeviceIndex device, const Settings& settings, const Native& native, const Pools& pools)
      : device_(device),
        settings_(settings),
        native_(native),
        cap_(device, settings, native, pools) {}

  size_t bytes();
  // What users are told: the limit that they set, or else bytes(). The second does not ask the
  // device: 0 if that was not asked before.
  size_t shown();
  size_t known() const;

  // What enforces it.
  Cap& cap() {
    return cap_;
  }
  const Cap& cap() const {
    return cap_;
  }

  // What the user set has changed.
  void forget() {
    most_ = spare_ = growth_ = others_ = 0;
    headroom_ = {};
    cap_.forget();
    changed_ = true;
  }
  // Whether more may be reserved than is allowed since the last call.
  bool take_changed() {
    return std::exchange(changed_, false);
  }

  // The native allocator has taken memory from the device, or failed to: looks at the device again.
  // What is not PyTorch's grows there, too: handles and workspaces of libraries, kernels that are
  // loaded when they are first used, other processes.
  void look();

  // To be called when the limit is exceeded. Others may have given memory back since the last look:
  // every few calls this looks again, if it is they who leave PyTorch less than it may have. True
  // if it did.
  bool look_again();

  // Bytes that are left to what is not PyTorch's: as much as it took before the first look, or what
  // it has grown by between two looks, if that is more; at most a 32nd of the device, and a quarter
  // of what PyTorch can take.
  size_t spare() const {
    return spare_;
  }
  // Bytes that the device had free when it was last looked at.
  size_t free() const {
    return free_;
  }

  // A request was let through, and failed all the same: what is free lies in pieces.
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
  size_t most_ = 0; // bytes(), but for the headroom below it; 0 = not known yet
  Headroom headroom_;
  bool changed_ = false;
  bool others_decide_ = false; // the user would let PyTorch have more
  unsigned exceeded_ = 0; // calls of look_again() since it looked
  size_t spare_ = 0;
  size_t growth_ = 0; // bytes by which others_ has grown at once, at most
  size_t others_ = 0; // bytes of the device that are not PyTorch's
  size_t free_ = 0;
};

} // namespace torch::cuda::lms
