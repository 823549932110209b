#pragma once

#include <torch/csrc/cuda/lms/record/trace.h>

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace torch::cuda::lms {

// Records what operators use on one device, for the planner. Used under the LMS mutex; the device
// must be current for mark(), stop() and the destructor. While it is off, each call costs one test.
class Recorder {
 public:
  // The number of a block in a recording, which is stored in the block. 0 means that this recording
  // has not seen the block yet.
  struct Number {
    uint32_t value = 0;
    uint32_t recording = 0;
  };

  bool on() const {
    return on_;
  }

  // Discards the last recording and starts a new one. Does nothing if a recording is on.
  void start();
  // Ends the recording and sets the values of the marks. Waits for the events of the marks, so the
  // caller should already have waited for the device, without the mutex. Throws c10::Error.
  void stop();

  const std::vector<TraceEvent>& events() const {
    return events_;
  }
  // The names of operators; the first is empty.
  const std::vector<std::string>& names() const {
    return names_;
  }

  // The uses that follow are those of this operator. `unit` is unique among the operators.
  void in_operator(uint64_t unit, const char* name);
  void used(Number& block, size_t bytes, bool write);
  void allocated(Number& block, size_t bytes);
  void freed(const Number& block);
  void step();

  // Marks the end of the work that is queued on the stream. A mark that follows the last one too
  // soon is left out. Does not throw: without marks, a trace has no times.
  void mark(cudaStream_t stream);

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const;
  };
  using TimedEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;
  struct Mark {
    size_t event; // its index in events_
    TimedEvent done;
  };

  void add(TraceEvent::Kind kind, uint32_t block, uint64_t value, uint16_t name = 0);
  uint16_t index_of(const char* name);
  uint32_t number(Number& block, TraceEvent::Kind first_seen, size_t bytes);
  uint64_t now() const; // nanoseconds since the recording began

  bool on_ = false;
  uint32_t recording_ = 0;
  uint32_t blocks_ = 0;
  uint64_t unit_ = 0;
  uint64_t last_mark_ = 0; // nanoseconds since the recording began
  std::chrono::steady_clock::time_point began_;
  std::vector<TraceEvent> events_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, uint16_t> indices_;
  std::vector<Mark> marks_;
};

} // namespace torch::cuda::lms
