#include <torch/csrc/cuda/lms/move/meter.h>

#include <algorithm>
#include <utility>

namespace torch::cuda::lms {

void Meter::begins(cudaStream_t stream, cudaStream_t second, size_t bytes) {
  if (!pending_.empty() && !pending_.back().end) {
    pending_.pop_back(); // CUDA refused that transfer
  }
  // An event takes time, too.
  if (bytes == 0 || (bytes < Rates::kLarge && !rates_.empty())) {
    return;
  }
  if (pending_.size() >= kPending) {
    read();
  }
  if (pending_.size() < kPending) {
    auto begin = TimedEvent::record(stream);
    auto other = second != nullptr ? TimedEvent::record(second) : nullptr;
    if (begin && (other || second == nullptr)) {
      pending_.push_back({bytes, std::move(begin), std::move(other), nullptr, nullptr});
    }
  }
}

void Meter::record(std::unique_ptr<TimedEvent> Sample::* event, cudaStream_t stream) {
  if (!pending_.empty() && !pending_.back().end) {
    pending_.back().*event = TimedEvent::record(stream);
    if (!(pending_.back().*event)) {
      pending_.pop_back();
    }
  }
}

const Rates& Meter::rates() {
  while (read()) {
  }
  return rates_;
}

bool Meter::read() {
  if (pending_.empty() || !pending_.front().end || !pending_.front().end->done()) {
    return false;
  }
  const Sample& sample = pending_.front();
  double seconds = 0;
  try {
    seconds = sample.end->since(*sample.begin);
    if (sample.second) {
      seconds = std::min(seconds, sample.end->since(*sample.second));
    }
    if (sample.waited) {
      const double moving = sample.end->since(*sample.waited);
      seconds = seconds > 2 * moving ? 0 : std::min(seconds, moving);
    }
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
  }
  if (seconds > 0) {
    rates_.add(sample.bytes, seconds);
  }
  pending_.pop_front();
  return true;
}

} // namespace torch::cuda::lms
