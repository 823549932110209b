#pragma once

#include <torch/csrc/cuda/lms/host/slab.h>

#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <string>

namespace torch::cuda::lms {

// Makes one slab ahead of need, in a thread of its own. Used under the LMS
// mutex, which its thread never takes.
class Pinner {
 public:
  Pinner(c10::DeviceIndex device, int node);
  Pinner(const Pinner&) = delete;
  Pinner& operator=(const Pinner&) = delete;
  ~Pinner();

  // Bytes of the slab that is being made or ready; 0 when there is none.
  size_t bytes() const {
    return bytes_;
  }

  // Begins a slab. There must be none.
  void start(size_t bytes);

  // The slab, when it is ready: waits for it. Null when it could not be made.
  std::unique_ptr<Slab> finish();

 private:
  class Worker;

  const c10::DeviceIndex device_;
  const int node_;
  size_t bytes_ = 0;
  std::unique_ptr<Worker> worker_; // made at the first start()
};

} // namespace torch::cuda::lms
