#pragma once

#include <algorithm>
#include <cstddef>

namespace torch::cuda::lms {

// Of times of iterations. The least says little: how long an iteration takes depends on how much
// free memory happens to be in pieces, and on what happens to shrink. There has to be a time.
template <class Seconds>
double median(Seconds seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

} // namespace torch::cuda::lms
