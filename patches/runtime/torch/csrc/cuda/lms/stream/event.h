#pragma once

#include <torch/csrc/cuda/lms/compat/capture.h>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

// Returns false on a CUDA error, too: a later wait for the event reports it.
inline bool done(cudaEvent_t event) {
  try {
    const compat::RelaxedCapture relaxed; // a capture on another device forbids it otherwise
    if (cudaEventQuery(event) == cudaSuccess) {
      return true;
    }
  } catch (const c10::Error&) {
  }
  (void)cudaGetLastError();
  return false;
}

inline void synchronize(cudaEvent_t event) {
  const compat::RelaxedCapture relaxed;
  C10_CUDA_CHECK(cudaEventSynchronize(event));
}

// Owns a CUDA event without timing.
class Event {
 public:
  Event() {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    // At process exit, the driver may already be unloaded. The error can be ignored then.
    if (cudaEventDestroy(event_) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }

  void record(cudaStream_t stream) {
    done_.store(false, std::memory_order_relaxed);
    C10_CUDA_CHECK(cudaEventRecord(event_, stream));
  }

  // Makes later work on the stream wait for the event. The host does not wait.
  void block(cudaStream_t stream) const {
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
  }

  bool done() const {
    if (!done_.load(std::memory_order_relaxed) && lms::done(event_)) {
      done_.store(true, std::memory_order_relaxed);
    }
    return done_.load(std::memory_order_relaxed);
  }

  void synchronize() const {
    lms::synchronize(event_);
  }

 private:
  cudaEvent_t event_ = nullptr;
  // A block's buffer and its hash, and others, wait for the same event, and each asks.
  mutable std::atomic<bool> done_{false};
};

// Owns a CUDA event with timing. Its constructor does not throw; without an event, nothing is
// timed.
class TimedEvent {
 public:
  // Records the end of the work that is queued on the stream.
  static std::unique_ptr<TimedEvent> record(cudaStream_t stream) {
    std::unique_ptr<TimedEvent> timed(new TimedEvent);
    if (cudaEventCreateWithFlags(&timed->event_, cudaEventDefault) != cudaSuccess ||
        cudaEventRecord(timed->event_, stream) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return timed;
  }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  ~TimedEvent() {
    if (event_ && cudaEventDestroy(event_) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }

  bool done() const {
    return lms::done(event_);
  }

  void synchronize() const {
    lms::synchronize(event_);
  }

  // Seconds from an earlier event to this one; 0 if this one was first. Both must be done.
  double since(const TimedEvent& earlier) const {
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds > 0 ? static_cast<double>(milliseconds) * 1e-3 : 0;
  }

 private:
  TimedEvent() = default;

  cudaEvent_t event_ = nullptr;
};

// Shared, because the block, its host buffer and a timeline may all wait for the same point of a
// stream.
using EventRef = std::shared_ptr<Event>;

// Reuses the events of one device. Used under the LMS mutex, with that device current. It outlives
// every EventRef it returned (Runtime is never destroyed).
class EventPool {
 public:
  EventRef record(cudaStream_t stream) {
    std::unique_ptr<Event> event;
    if (free_.empty()) {
      event = std::make_unique<Event>();
    } else {
      event = std::move(free_.back());
      free_.pop_back();
    }
    event->record(stream);
    return EventRef(event.release(), [this](Event* used) { free_.emplace_back(used); });
  }

 private:
  std::vector<std::unique_ptr<Event>> free_;
};

} // namespace torch::cuda::lms
