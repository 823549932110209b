#pragma once

namespace torch::cuda::lms::compat {

// The profiler of this release looks at no addresses.
inline bool profiler_looks() {
  return false;
}

} // namespace torch::cuda::lms::compat
