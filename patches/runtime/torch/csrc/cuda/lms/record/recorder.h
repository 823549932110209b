#pragma once

#include <torch/csrc/cuda/lms/record/trace.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch::cuda::lms {

// A recording that has ended.
class Recording {
 public:
  std::vector<TraceEvent> events; // the times of marks are 0 until settle()

  // Whether the device has passed all marks.
  bool ready() const;
  // Sets the times of the marks. Waits for the device if it has not passed them. Throws
  // c10::Error.
  void settle();

 private:
  friend class Recorder;
  struct Mark {
    size_t event; // its index in `events`
    std::unique_ptr<TimedEvent> done;
  };
  std::vector<Mark> marks_;
};

// Records what operators use on one device, for the planner. Used under the LMS mutex; the device
// must be current for the functions that mark, and for the destructor. While it is off, each call
// costs one test.
class Recorder {
 public:
  // The number of a block in a recording, which is stored in the block. Numbers are given in the
  // order in which blocks appear. 0 means that this recording has not seen the block yet.
  struct Number {
    uint32_t value = 0;
    uint32_t recording = 0;
  };

  bool on() const {
    return on_;
  }

  // The number of the recording.
  uint32_t number() const {
    return number_;
  }
  // Whether it makes marks at present.
  bool timed() const {
    return on_ && timed_;
  }

  // Discards the last recording and starts a new one. Does nothing if a recording is on. Without
  // `timed`, no marks are made. With `again`, names keep their indices.
  void start(bool timed = true, bool again = false);
  // Ends the recording, and returns it.
  Recording take();

  const std::vector<TraceEvent>& events() const {
    return recording_.events;
  }
  // The names of operators; the first is empty.
  const std::vector<std::string>& names() const {
    return names_;
  }

  // The uses that follow are those of this operator. `unit` is unique among the operators. Returns
  // whether another operator has begun.
  bool in_operator(uint64_t unit, const char* name);
  // The block is there. This and the next two return whether it has just got its number.
  bool knows(Number& block, size_t bytes);
  bool used(Number& block, size_t bytes, bool write);
  bool allocated(Number& block, size_t bytes);
  void freed(const Number& block);
  // The operator needs memory that is not a storage, and returns it before it ends.
  void workspace(size_t bytes);
  // The optimizer's number, or 0 if the program itself says so.
  void step(uint32_t optimizer);

  // Whether the use that follows is the first one of this operator.
  bool begins(uint64_t unit) const {
    return on_ && unit != unit_;
  }
  // An operator begins: marks the end of the work that is queued on the stream. A mark that follows
  // the last such one too soon is left out. Does not throw: without marks, a trace has no times.
  void mark(cudaStream_t stream);
  // The same, never left out: without it, nothing is known of the last operators' times.
  void mark_end(cudaStream_t stream) {
    add_mark(stream, TraceEvent::Kind::Mark);
  }
  // The stream is going to wait for a transfer, or has queued the wait.
  void stalls(cudaStream_t stream) {
    if (preparing_) {
      waits_ = true;
    } else {
      add_mark(stream, TraceEvent::Kind::Stalled);
    }
  }
  void resumes(cudaStream_t stream) {
    if (!preparing_) {
      add_mark(stream, TraceEvent::Kind::Resumed);
    }
  }
  // The host looks for memory for an operator, or has some. If that takes so long that the device
  // has nothing to do, the operator itself is not slower.
  void prepares(cudaStream_t stream);
  void prepared(cudaStream_t stream);

 private:
  void add(TraceEvent::Kind kind, uint32_t block, uint64_t value, uint16_t name = 0);
  void add_mark(cudaStream_t stream, TraceEvent::Kind kind);
  uint16_t index_of(const char* name);
  bool give_number(Number& block, TraceEvent::Kind first_seen, size_t bytes);
  uint64_t now() const; // nanoseconds since the recording began

  bool on_ = false;
  bool timed_ = false;
  uint32_t number_ = 0; // of the recording
  uint32_t blocks_ = 0;
  uint64_t unit_ = 0;
  uint64_t last_mark_ = 0; // nanoseconds since the recording began
  uint64_t last_begin_ = 0; // the same, of an operator that was marked
  bool preparing_ = false; // between prepares() and prepared(); the next mark ends it, too
  bool waits_ = false; // the stream waits for a transfer since prepares()
  std::chrono::steady_clock::time_point began_;
  Recording recording_;
  std::vector<std::string> names_{std::string()};
  std::unordered_map<std::string, uint16_t> indices_;
};

} // namespace torch::cuda::lms
