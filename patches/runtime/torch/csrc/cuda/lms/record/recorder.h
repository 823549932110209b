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

// Records what operators use on one device, for the planner. Under the LMS mutex, with the device
// current for mark(), stop() and the destructor. While it is off, a call costs one test.
class Recorder {
 public:
  // Blocks keep their numbers here. 0 is a block that this recording has not seen yet.
  struct Number {
    uint32_t value = 0;
    uint32_t recording = 0;
  };

  bool on() const {
    return on_;
  }

  // Forgets the last recording, and begins a new one. start() does nothing while it is on.
  void start();
  // Ends the recording, and sets the values of the marks. Waits for their work: the caller has
  // waited for the device before, without the mutex. Throws c10::Error.
  void stop();

  const std::vector<TraceEvent>& events() const {
    return events_;
  }
  // The names of operators; the first is empty.
  const std::vector<std::string>& names() const {
    return names_;
  }

  // The uses that follow are those of this operator. `unit` is a number that no other operator has.
  void in_operator(uint64_t unit, const char* name);
  void used(Number& block, size_t bytes, bool write);
  void allocated(Number& block, size_t bytes);
  void freed(const Number& block);
  void step();

  // The work that is queued on the stream ends here. Marks that would follow the last one too soon
  // are left out. Does not throw: without marks a trace has no times.
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
