#pragma once

#include <torch/csrc/cuda/lms/stream/event.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <memory>

namespace torch::cuda::lms {

// Measures how fast one direction between a device and the host is. Used under the LMS mutex, with
// the device current.
class Meter {
 public:
  // Around a transfer of this number of bytes. Only some transfers are measured. Nothing throws.
  void begins(cudaStream_t stream, size_t bytes);
  void ends(cudaStream_t stream);

  // Bytes per second of the transfers that were measured last; 0 if none was.
  double rate();

 private:
  struct Sample {
    size_t bytes;
    std::unique_ptr<TimedEvent> begin;
    std::unique_ptr<TimedEvent> end; // null until the transfer was issued
  };

  // What takes the link for less time is not measured: an event takes some of it, too.
  static constexpr size_t kSmallest = size_t(1) << 20; // bytes
  static constexpr size_t kPending = 8; // samples
  static constexpr double kKept = 0.9; // of the weight of what was measured before

  std::deque<Sample> pending_;
  double bytes_ = 0;
  double seconds_ = 0;
};

} // namespace torch::cuda::lms
