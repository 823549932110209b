#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/room/loan.h>
#include <torch/csrc/cuda/lms/room/planned.h>

#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

namespace torch::cuda::lms {

// Makes the native allocator hand out a given address: it takes the free range that fits best, so
// all that fit better, and what lies before the address, are taken first, and given back behind it.
// For the current stream. Used under the LMS mutex, which all functions pause.
class Steering {
 public:
  Steering(c10::DeviceIndex device, const Native& native) : device_(device), native_(native) {}

  // Memory at the address; none if it is not free. Does not throw.
  at::DataPtr take(const Planned::Piece& piece) const;

  // The address of so many free bytes side by side, taken from the device if necessary; 0 if there
  // are none. Does not throw.
  size_t find(size_t bytes) const;

 private:
  bool clear(const Planned::Piece& piece, std::vector<Loan>& others) const;

  const c10::DeviceIndex device_;
  const Native native_;
};

} // namespace torch::cuda::lms
