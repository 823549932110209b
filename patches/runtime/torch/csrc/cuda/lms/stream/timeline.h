#pragma once

#include <torch/csrc/cuda/lms/stream/event.h>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <deque>

namespace torch::cuda::lms {

// What has been issued on one stream, as numbered positions. A block remembers
// the position of its last use; a page-out waits for an event at or after that
// position, not for everything issued since. That is what lets a page-out of an
// old block run beside the compute that is queued now.
class Timeline {
 public:
  Timeline(c10::cuda::CUDAStream stream, EventPool& events) : stream_(stream), events_(events) {}

  c10::cuda::CUDAStream stream() const {
    return stream_;
  }

  uint64_t position() const {
    return position_;
  }

  // The work issued until now gets the current position; later work a new one.
  uint64_t advance() {
    return position_++;
  }

  // Records an event for everything issued until now.
  EventRef mark() {
    // Every device has a default stream, and all of them have the same handle.
    const c10::cuda::CUDAGuard guard(stream_.device_index());
    // position_ is the number of the work that comes next.
    marks_.push_back({position_, events_.record(stream_)});
    if (marks_.size() > kMarks) {
      marks_.pop_front();
    }
    return marks_.back().event;
  }

  // Whether there is an event for the work at this position, or a later one.
  bool marked(uint64_t position) const {
    return !marks_.empty() && marks_.back().end > position;
  }

  // An event that is complete only when the work at this position is.
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
    uint64_t end; // covers every position below
    EventRef event;
  };

  // Older marks are dropped: a later mark covers their positions, too.
  static constexpr size_t kMarks = 256;

  c10::cuda::CUDAStream stream_;
  EventPool& events_;
  uint64_t position_ = 0;
  std::deque<Mark> marks_;
};

} // namespace torch::cuda::lms
