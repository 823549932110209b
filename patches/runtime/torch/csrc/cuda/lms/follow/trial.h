#pragma once

#include <torch/csrc/cuda/lms/follow/median.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace torch::cuda::lms {

// Finds out whether an iteration is faster if what it moves is compressed. Less goes over the link
// then, but the kernels wait for compute, and compute for them, and how much that costs is known
// only when it has been measured. So iterations are timed in three ways, one after the other, and
// the fastest way is kept.
class Trial {
 public:
  enum class Way : uint8_t {
    Copy, // everything is copied
    Pack, // the same plan, but what shrinks is compressed; this shows how far it shrinks
    Plan // a plan that counts on that
  };

  static constexpr unsigned kIterations = 3; // of each way; their median counts

  // While it is not over, the way that is timed; then the way that is kept.
  Way way() const {
    return way_;
  }
  bool over() const {
    return over_;
  }

  // An iteration took this number of seconds in this way, and so did the one before it.
  void took(Way way, double seconds) {
    if (over_ || way != way_) {
      return;
    }
    timed_[iterations_] = seconds;
    if (++iterations_ == kIterations) {
      iterations_ = 0;
      seconds_[static_cast<size_t>(way)] = median(timed_);
      if (way == Way::Plan) {
        decide();
      } else {
        way_ = way == Way::Copy ? Way::Pack : Way::Plan;
      }
    }
  }

  // The planner has found that a plan that counts on compression is of no use.
  void no_plan() {
    seconds_[static_cast<size_t>(Way::Plan)] = kUnknown;
    decide();
  }

 private:
  static constexpr double kFaster = 0.99; // of the time; less is noise
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  void decide() {
    way_ = Way::Copy;
    for (const Way other : {Way::Pack, Way::Plan}) {
      const double best = seconds_[static_cast<size_t>(way_)];
      if (seconds_[static_cast<size_t>(other)] < kFaster * best) {
        way_ = other;
      }
    }
    over_ = true;
  }

  Way way_ = Way::Copy;
  bool over_ = false;
  std::array<double, kIterations> timed_{}; // in this way
  unsigned iterations_ = 0; // that were timed in this way
  std::array<double, 3> seconds_{kUnknown, kUnknown, kUnknown}; // by way
};

} // namespace torch::cuda::lms
