#pragma once

#include <algorithm>
#include <limits>

namespace torch::cuda::lms {

// Which part of what PyTorch may take the plans for an iteration use. Free memory is in pieces: if
// a plan uses nearly all of it, requests fail at first, and the native allocator waits for the
// device and maps memory anew. If it uses less, more is copied. So this takes less step by step as
// long as requests fail and iterations become faster, and returns to what was fastest.
class Slack {
 public:
  // From 0 to 1.
  double part() const {
    return part_ / 100.0;
  }

  // An iteration took this number of seconds with a plan that uses this part. `failed` says whether
  // a request failed at first.
  void took(double part, double seconds, bool failed) {
    if (part != this->part() || found_) {
      return;
    }
    seconds_ = std::min(seconds_, seconds);
    failures_ += failed;
    if (++iterations_ == kIterations) {
      decide();
    }
  }

 private:
  // In hundredths, as all parts here.
  static constexpr int kMost = 99;
  static constexpr int kStep = 1;
  static constexpr int kLeast = 85;
  static constexpr double kFaster = 0.997; // of the time; less is noise
  static constexpr unsigned kIterations = 3; // whose least time counts
  static constexpr unsigned kSteps = 3; // in a row that made nothing faster

  void decide() {
    if (seconds_ < kFaster * best_seconds_) {
      best_seconds_ = seconds_;
      best_ = part_;
      slower_ = 0;
    } else {
      ++slower_;
    }
    const bool more = failures_ > 0 && slower_ < kSteps && part_ - kStep >= kLeast;
    part_ = more ? part_ - kStep : best_;
    found_ = !more;
    seconds_ = kUnknown;
    failures_ = iterations_ = 0;
  }

  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  int part_ = kMost;
  double seconds_ = kUnknown; // the least with this part
  unsigned iterations_ = 0; // with this part
  unsigned failures_ = 0; // iterations among them in which a request failed
  int best_ = kMost;
  double best_seconds_ = kUnknown;
  unsigned slower_ = 0; // steps in a row that made nothing faster
  bool found_ = false;
};

} // namespace torch::cuda::lms
