#pragma once

#include <torch/csrc/profiler/orchestration/observer.h>

namespace torch::cuda::lms::compat {

// Whether the profiler looks at the addresses of this thread's operators.
inline bool profiler_looks() {
  using namespace torch::profiler::impl;
  return profilerEnabled() && getProfilerConfig().report_input_shapes;
}

} // namespace torch::cuda::lms::compat
