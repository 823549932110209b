#include <torch/csrc/cuda/lms/move/meter.h>

#include <utility>

namespace torch::cuda::lms {

void Meter::begins(cudaStream_t stream, size_t bytes) {
  if (!pending_.empty() && !pending_.back().end) {
    pending_.pop_back(); // CUDA refused that transfer
  }
  if (bytes == 0 || (bytes < kSmallest && !rates_.empty())) {
    return;
  }
  if (pending_.size() >= kPending) {
    rate();
  }
  if (pending_.size() < kPending) {
    if (auto begin = TimedEvent::record(stream)) {
      pending_.push_back({bytes, std::move(begin), nullptr});
    }
  }
}

void Meter::ends(cudaStream_t stream) {
  if (!pending_.empty() && !pending_.back().end) {
    pending_.back().end = TimedEvent::record(stream);
    if (!pending_.back().end) {
      pending_.pop_back();
    }
  }
}

double Meter::rate() {
  while (!pending_.empty() && pending_.front().end && pending_.front().end->done()) {
    const Sample& sample = pending_.front();
    double seconds = 0;
    try {
      seconds = sample.end->since(*sample.begin);
    } catch (const c10::Error&) {
      (void)cudaGetLastError();
    }
    if (seconds > 0) {
      rates_.add(sample.bytes, seconds);
    }
    pending_.pop_front();
  }
  return rates_.median();
}

} // namespace torch::cuda::lms
