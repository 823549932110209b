#pragma once

#include <algorithm>

namespace torch::cuda::lms::plan {

// One direction between device and host: it makes one transfer after the other, in the order in
// which they were issued.
class Link {
 public:
  // When a transfer ends that may begin at a time, in seconds.
  double transfer(double from, double seconds) {
    free_ = std::max(free_, from) + seconds;
    return free_;
  }

 private:
  double free_ = 0;
};

} // namespace torch::cuda::lms::plan
