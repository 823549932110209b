#pragma once

#include <torch/csrc/cuda/lms/compat/compat.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <deque>

namespace torch::cuda::lms {

// Whether the stream can be used at any time. The user may have destroyed an external stream.
inline bool lasting(c10::cuda::CUDAStream stream) {
  return !compat::is_external(stream);
}

// Numbers the work that is issued on one stream. A block remembers the position of its last use,
// and a page-out waits for an event at or after that position instead of for all work issued since.
// So the page-out of an old block can overlap with the compute that is queued now.
class Timeline {
 public:
  Timeline(c10::cuda::CUDAStream stream, EventPool& events) : stream_(stream), events_(events) {}

  c10::cuda::CUDAStream stream() const {
    return stream_;
  }

  uint64_t position() const {
    return position_;
  }

  // Gives the work issued until now the current position, and later work a new one.
  uint64_t advance() {
    return position_++;
  }

  // Records an event after all work issued until now.
  EventRef mark() {
    // The default streams of all devices have the same handle, so the device must be current.
    const c10::cuda::CUDAGuard guard(stream_.device_index());
    // position_ is the number of the next work.
    marks_.push_back({position_, events_.record(stream_)});
    if (marks_.size() > kMarks) {
      marks_.pop_front();
    }
    return marks_.back().event;
  }

  // Whether there is an event that covers the work at this position.
  bool marked(uint64_t position) const {
    return !marks_.empty() && marks_.back().end > position;
  }

  // An event that is complete only when the work at this position is complete.
  EventRef after(uint64_t position) {
    for (const Mark& mark : marks_) {
      if (mark.end > position) {
        return mark.event;
      }
    }
    return mark();
  }

 private:
  struct Mark {
    uint64_t end; // the event covers all positions below this one
    EventRef event;
  };

  // Older marks are dropped, because later marks cover their positions, too.
  static constexpr size_t kMarks = 256;

  c10::cuda::CUDAStream stream_;
  EventPool& events_;
  uint64_t position_ = 0;
  std::deque<Mark> marks_;
};

} // namespace torch::cuda::lms
