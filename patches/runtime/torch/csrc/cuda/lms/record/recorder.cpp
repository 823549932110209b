#include <torch/csrc/cuda/lms/record/recorder.h>

#include <c10/cuda/CUDAException.h>

#include <limits>
#include <utility>

namespace torch::cuda::lms {

namespace {

// Recording an event on a stream takes about 1 us of the host's time.
constexpr uint64_t kBetweenMarks = 50'000; // nanoseconds

} // namespace

void Recorder::Destroy::operator()(cudaEvent_t event) const {
  if (cudaEventDestroy(event) != cudaSuccess) {
    (void)cudaGetLastError();
  }
}

void Recorder::start() {
  if (on_) {
    return;
  }
  events_.clear();
  marks_.clear();
  indices_.clear();
  names_.assign(1, std::string());
  blocks_ = 0;
  unit_ = 0;
  last_mark_ = 0;
  ++recording_;
  began_ = std::chrono::steady_clock::now();
  on_ = true;
}

void Recorder::stop() {
  if (!on_) {
    return;
  }
  on_ = false;
  const std::vector<Mark> marks = std::move(marks_);
  marks_.clear();
  for (const Mark& mark : marks) {
    C10_CUDA_CHECK(cudaEventSynchronize(mark.done.get()));
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, marks.front().done.get(), mark.done.get()));
    // Work of different streams may end in another order than the host issued it.
    events_[mark.event].value =
        milliseconds > 0 ? static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6) : 0;
  }
}

void Recorder::add(TraceEvent::Kind kind, uint32_t block, uint64_t value, uint16_t name) {
  TraceEvent event;
  event.value = value;
  event.block = block;
  event.name = name;
  event.kind = kind;
  events_.push_back(event);
}

uint16_t Recorder::index_of(const char* name) {
  const auto [known, added] = indices_.emplace(name ? name : "", 0);
  if (added && names_.size() <= std::numeric_limits<uint16_t>::max()) {
    known->second = static_cast<uint16_t>(names_.size());
    names_.push_back(known->first);
  }
  return known->second;
}

uint32_t Recorder::number(Number& block, TraceEvent::Kind first_seen, size_t bytes) {
  if (block.recording != recording_) {
    block = {++blocks_, recording_};
    add(first_seen, block.value, bytes);
  }
  return block.value;
}

uint64_t Recorder::now() const {
  const auto passed = std::chrono::steady_clock::now() - began_;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

void Recorder::in_operator(uint64_t unit, const char* name) {
  if (on_ && unit != unit_) {
    unit_ = unit;
    add(TraceEvent::Kind::Operator, 0, now(), index_of(name));
  }
}

void Recorder::used(Number& block, size_t bytes, bool write) {
  if (on_) {
    const uint32_t known = number(block, TraceEvent::Kind::Known, bytes);
    add(write ? TraceEvent::Kind::Written : TraceEvent::Kind::Read, known, 0);
  }
}

void Recorder::allocated(Number& block, size_t bytes) {
  if (on_) {
    number(block, TraceEvent::Kind::Allocated, bytes);
  }
}

void Recorder::freed(const Number& block) {
  if (on_ && block.recording == recording_) {
    add(TraceEvent::Kind::Freed, block.value, 0);
  }
}

void Recorder::step() {
  if (on_) {
    add(TraceEvent::Kind::Step, 0, 0);
  }
}

void Recorder::mark(cudaStream_t stream) {
  if (!on_) {
    return;
  }
  const uint64_t time = now();
  if (!marks_.empty() && time < last_mark_ + kBetweenMarks) {
    return;
  }
  cudaEvent_t event = nullptr;
  if (cudaEventCreateWithFlags(&event, cudaEventDefault) != cudaSuccess) {
    (void)cudaGetLastError();
    return;
  }
  TimedEvent done(event);
  if (cudaEventRecord(done.get(), stream) != cudaSuccess) {
    (void)cudaGetLastError();
    return;
  }
  last_mark_ = time;
  marks_.push_back({events_.size(), std::move(done)});
  add(TraceEvent::Kind::Mark, 0, 0);
}

} // namespace torch::cuda::lms
