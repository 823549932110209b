#include <torch/csrc/cuda/lms/follow/period.h>

#include <algorithm>

namespace torch::cuda::lms {

bool Period::add(uint64_t hash, size_t events, bool same_blocks) {
  if (same_blocks && !history_.empty() && history_.back().hash == hash) {
    history_.clear();
  }
  history_.push_back({hash, events});
  if (history_.size() > kOften * kMost) {
    history_.pop_front();
  }
  for (size_t period = 2; kOften * period <= history_.size() && period <= kMost; ++period) {
    if (repeats(period)) {
      history_.clear();
      steps_ = period;
      unknown_ = 0;
      return true;
    }
  }
  return false;
}

// Whether the last steps take turns for long enough, and are few enough.
bool Period::repeats(size_t period) const {
  const size_t length = std::max(kOften * period, least_);
  if (length > history_.size()) {
    return false;
  }
  size_t events = 0;
  bool turns = false;
  for (size_t i = 1; i + period <= length; ++i) {
    const Step& step = history_[history_.size() - i];
    events += i <= period ? step.events : 0;
    turns = turns || step.hash != history_.back().hash;
    if (step.hash != history_[history_.size() - i - period].hash || events > kEvents) {
      return false;
    }
  }
  return turns;
}

bool Period::ended(bool known) {
  unknown_ = known ? 0 : unknown_ + 1;
  if (unknown_ < kUnknown) {
    return false;
  }
  unknown_ = 0;
  steps_ = 1;
  least_ *= 2;
  return true;
}

} // namespace torch::cuda::lms
