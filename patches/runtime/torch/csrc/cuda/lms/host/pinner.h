#pragma once

#include <torch/csrc/cuda/lms/host/slab.h>

#include <c10/core/Device.h>

#include <cstddef>
#include <memory>
#include <string>

namespace torch::cuda::lms {

// Pins one slab before it is needed, in its own thread. Used under the LMS mutex, which this thread
// never takes.
class Pinner {
 public:
  Pinner(c10::DeviceIndex device, int node);
  Pinner(const Pinner&) = delete;
  Pinner& operator=(const Pinner&) = delete;
  ~Pinner();

  // Size in bytes of the slab that is being pinned or is ready; 0 if there is none.
  size_t bytes() const {
    return bytes_;
  }

  // Starts to pin a slab. Must not be called while there is one.
  void start(size_t bytes);

  // Waits until finish() can be called. Does not need the mutex.
  void wait() const;
  // Whether finish() can be called without a wait.
  bool ready() const;

  // Returns the slab; null if it could not be pinned.
  std::unique_ptr<Slab> finish();

 private:
  class Worker;

  const c10::DeviceIndex device_;
  const int node_;
  size_t bytes_ = 0;
  std::unique_ptr<Worker> worker_; // created at the first start()
};

} // namespace torch::cuda::lms
