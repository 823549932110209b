#pragma once

#include <torch/csrc/cuda/lms/stream/event.h>
#include <torch/csrc/cuda/lms/stream/own_stream.h>

#include <cstddef>

namespace torch::cuda::lms {

// Two streams that take turns, and behave as one: what is issued runs in the order in which it was
// issued. A GPU that has begun with the copies of one stream goes on with them until the stream has
// none that may run, and only then serves other streams' copies in the same direction. So a program
// that reads a loss would wait for all page-outs that are queued. Here, each stream has to wait for
// the other between turns, so that the program's copy runs after the one that is under way.
// Measured with tests/gpu/engine.py. Used under the LMS mutex, with the device current.
class Relay {
 public:
  explicit Relay(int priority) : streams_{OwnStream(priority), OwnStream(priority)} {}
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // What runs on this stream from now on runs after all that was issued before, whichever stream it
  // was issued on.
  cudaStream_t stream() const {
    return streams_[turn_];
  }

  // Call this before a copy of this number of bytes, and use stream() for it. Throws c10::Error;
  // the stream is the same as before then.
  void next(size_t bytes) {
    if (issued_ >= kTurn) {
      const cudaStream_t other = streams_[1 - turn_];
      end_.record(stream());
      end_.block(other);
      turn_ = 1 - turn_;
      issued_ = 0;
    }
    issued_ += bytes;
  }

 private:
  // So that the two calls of CUDA take no part of the time that counts; some 0.15 ms of PCI Express
  // 5.0.
  static constexpr size_t kTurn = size_t(8) << 20; // bytes

  OwnStream streams_[2];
  int turn_ = 0; // whose it is
  size_t issued_ = 0; // bytes in this turn
  Event end_; // of the last turn
};

} // namespace torch::cuda::lms
