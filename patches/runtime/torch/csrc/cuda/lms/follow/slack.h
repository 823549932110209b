#pragma once

#include <torch/csrc/cuda/lms/follow/median.h>

#include <array>
#include <limits>

namespace torch::cuda::lms {

// Which part of what PyTorch may take the plans for an iteration use. Free memory is in pieces: if
// a plan uses nearly all of it, requests fail at first, and the native allocator waits for the
// device and maps memory anew. If it uses less, more is copied. If no request fails with the first
// part, this tries a larger one. Otherwise it takes less step by step, as long as requests fail and
// iterations become faster. In the end, it returns to what was fastest. If requests begin to fail
// with the larger part only then, it returns to the first one.
class Slack {
 public:
  // From 0 to 1.
  double part() const {
    return part_ / 1000.0;
  }

  // There is no plan that uses this part. Returns whether there was one that used another part.
  bool no_plan() {
    const bool other = part_ != best_;
    if (other) {
      settle();
    }
    return other;
  }

  // An iteration took this number of seconds with a plan that uses this part. `failed` says whether
  // a request failed at first.
  void took(double part, double seconds, bool failed) {
    if (part != this->part() || (found_ && part_ != kMost)) {
      return;
    }
    seconds_[iterations_] = seconds;
    failures_ += failed;
    if (++iterations_ == kIterations) {
      decide();
    }
  }

 private:
  // In thousandths, as all parts here.
  static constexpr int kFirst = 985;
  static constexpr int kMost = 995;
  static constexpr int kStep = 10;
  static constexpr int kLeast = 855;
  static constexpr double kFaster = 0.997; // of the time; less is noise
  static constexpr unsigned kIterations = 3; // whose median counts: one can happen to fail nowhere
  static constexpr unsigned kSteps = 3; // in a row that made nothing faster

  void settle() {
    part_ = best_;
    found_ = true;
  }

  void decide() {
    const double seconds = median(seconds_);
    if (found_) {
      if (2 * failures_ > kIterations && seconds > first_seconds_) {
        best_ = kFirst;
        settle();
      }
      failures_ = iterations_ = 0;
      return;
    }
    first_seconds_ = part_ == kFirst ? seconds : first_seconds_;
    if (seconds < kFaster * best_seconds_) {
      best_seconds_ = seconds;
      best_ = part_;
      slower_ = 0;
    } else {
      ++slower_;
    }
    const bool fails = failures_ > 0;
    if (part_ == kFirst && !fails) {
      part_ = kMost;
    } else if (part_ < kMost && fails && slower_ < kSteps && part_ - kStep >= kLeast) {
      part_ -= kStep;
    } else {
      settle();
    }
    failures_ = iterations_ = 0;
  }

  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  int part_ = kFirst;
  std::array<double, kIterations> seconds_{}; // with this part
  unsigned iterations_ = 0; // with this part
  unsigned failures_ = 0; // iterations among them in which a request failed
  int best_ = kFirst;
  double best_seconds_ = kUnknown;
  double first_seconds_ = kUnknown; // with kFirst
  unsigned slower_ = 0; // steps in a row that made nothing faster
  bool found_ = false;
};

} // namespace torch::cuda::lms
