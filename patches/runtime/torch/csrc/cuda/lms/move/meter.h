#pragma once

#include <torch/csrc/cuda/lms/move/rates.h>
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
  // Around a transfer of this number of bytes; 0 if it is not known. Only some transfers are
  // measured. A transfer that uses two streams begins when both have done what was issued before,
  // though a part of it may run before that: then it takes no longer than it delays the next one.
  // Nothing throws.
  void begins(cudaStream_t stream, size_t bytes) {
    begins(stream, nullptr, bytes);
  }
  void begins(cudaStream_t stream, cudaStream_t second, size_t bytes);
  // Call this in between if the transfer has to wait for memory first, and the stream does now. If
  // it waits for longer than it takes then, it is not measured: some bytes may have been moved to
  // other memory meanwhile.
  void waited(cudaStream_t stream) {
    record(&Sample::waited, stream);
  }
  void ends(cudaStream_t stream) {
    record(&Sample::end, stream);
  }

  // With all transfers that have ended.
  const Rates& rates();

 private:
  struct Sample {
    size_t bytes;
    std::unique_ptr<TimedEvent> begin;
    std::unique_ptr<TimedEvent> second; // null if there is one stream
    std::unique_ptr<TimedEvent> waited; // null if it waits for no memory
    std::unique_ptr<TimedEvent> end; // null until the transfer was issued
  };

  // Of the transfer that has begun, if it is measured.
  void record(std::unique_ptr<TimedEvent> Sample::* event, cudaStream_t stream);

  // Takes the first sample if its transfer has ended. begins() reads one at a time: each takes the
  // host microseconds, for which the device may wait.
  bool read();

  static constexpr size_t kPending = 32; // samples

  std::deque<Sample> pending_;
  Rates rates_;
};

} // namespace torch::cuda::lms
