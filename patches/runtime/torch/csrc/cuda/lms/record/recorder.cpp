#include <torch/csrc/cuda/lms/record/recorder.h>

#include <limits>
#include <utility>

namespace torch::cuda::lms {

namespace {

// Recording an event on a stream takes about 1 us of the host's time. Operators between two marks
// count as equally long, which may be far from true: so there is a mark for nearly every operator
// that launches a kernel.
constexpr uint64_t kBetweenMarks = 10'000; // nanoseconds

} // namespace

bool Recording::ready() const {
  // Marks of different streams may pass in another order than the host issued them.
  for (auto mark = marks_.rbegin(); mark != marks_.rend(); ++mark) {
    if (!mark->done->done()) {
      return false;
    }
  }
  return true;
}

void Recording::settle() {
  const std::vector<Mark> marks = std::move(marks_);
  marks_.clear();
  for (const Mark& mark : marks) {
    mark.done->synchronize();
    events[mark.event].value = static_cast<uint64_t>(mark.done->since(*marks.front().done) * 1e9);
  }
}

void Recorder::start(bool timed, bool again) {
  if (on_) {
    return;
  }
  recording_ = Recording();
  if (!again) {
    indices_.clear();
    names_.assign(1, std::string());
  }
  blocks_ = 0;
  unit_ = 0;
  last_mark_ = last_begin_ = 0;
  preparing_ = false;
  ++number_;
  began_ = std::chrono::steady_clock::now();
  timed_ = timed;
  on_ = true;
}

Recording Recorder::take() {
  on_ = false;
  return std::exchange(recording_, Recording());
}

void Recorder::add(TraceEvent::Kind kind, uint32_t block, uint64_t value, uint16_t name) {
  TraceEvent event;
  event.value = value;
  event.block = block;
  event.name = name;
  event.kind = kind;
  recording_.events.push_back(event);
}

uint16_t Recorder::index_of(const char* name) {
  const auto [known, added] = indices_.emplace(name ? name : "", 0);
  if (added && names_.size() <= std::numeric_limits<uint16_t>::max()) {
    known->second = static_cast<uint16_t>(names_.size());
    names_.push_back(known->first);
  }
  return known->second;
}

bool Recorder::give_number(Number& block, TraceEvent::Kind first_seen, size_t bytes) {
  if (block.recording == number_) {
    return false;
  }
  block = {++blocks_, number_};
  add(first_seen, block.value, bytes);
  return true;
}

uint64_t Recorder::now() const {
  const auto passed = std::chrono::steady_clock::now() - began_;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

bool Recorder::in_operator(uint64_t unit, const char* name) {
  if (!begins(unit)) {
    return false;
  }
  unit_ = unit;
  add(TraceEvent::Kind::Operator, 0, now(), index_of(name));
  return true;
}

bool Recorder::knows(Number& block, size_t bytes) {
  return on_ && give_number(block, TraceEvent::Kind::Known, bytes);
}

bool Recorder::used(Number& block, size_t bytes, bool write) {
  if (!on_) {
    return false;
  }
  const bool first = knows(block, bytes);
  add(write ? TraceEvent::Kind::Written : TraceEvent::Kind::Read, block.value, 0);
  return first;
}

bool Recorder::allocated(Number& block, size_t bytes) {
  return on_ && give_number(block, TraceEvent::Kind::Allocated, bytes);
}

void Recorder::freed(const Number& block) {
  if (on_ && block.recording == number_) {
    add(TraceEvent::Kind::Freed, block.value, 0);
  }
}

void Recorder::workspace(size_t bytes) {
  if (on_ && unit_ != 0) {
    const uint32_t number = ++blocks_;
    add(TraceEvent::Kind::Allocated, number, bytes);
    add(TraceEvent::Kind::Freed, number, 0);
  }
}

void Recorder::step(uint32_t optimizer) {
  if (on_) {
    add(TraceEvent::Kind::Step, optimizer, 0);
  }
}

void Recorder::prepares(cudaStream_t stream) {
  if (preparing_) {
    return;
  }
  const size_t marks = recording_.marks_.size();
  add_mark(stream, TraceEvent::Kind::Stalled);
  preparing_ = recording_.marks_.size() > marks;
  waits_ = false;
}

void Recorder::prepared(cudaStream_t stream) {
  if (!std::exchange(preparing_, false)) {
    return;
  }
  if (waits_ || now() >= last_mark_ + kBetweenMarks) {
    add_mark(stream, TraceEvent::Kind::Resumed); // else the device has not waited
  }
}

void Recorder::mark(cudaStream_t stream) {
  preparing_ = false; // the request failed
  if (on_ && (recording_.marks_.empty() || now() >= last_begin_ + kBetweenMarks)) {
    last_begin_ = now();
    add_mark(stream, TraceEvent::Kind::Mark);
  }
}

void Recorder::add_mark(cudaStream_t stream, TraceEvent::Kind kind) {
  if (!on_ || !timed_) {
    return;
  }
  if (auto done = TimedEvent::record(stream)) {
    last_mark_ = now();
    recording_.marks_.push_back({recording_.events.size(), std::move(done)});
    add(kind, 0, 0);
  }
}

} // namespace torch::cuda::lms
