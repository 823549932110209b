#pragma once

#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/trace.h>
#include <torch/csrc/cuda/lms/record/simulation.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch::cuda::lms {

// The last iteration of a recording on a machine. The arguments are those of lms_simulate().
struct Forecast {
  // Throws std::runtime_error with what is wrong.
  Forecast(
      const void* events,
      size_t event_count,
      const char* const* names,
      size_t name_count,
      int64_t unmanaged_bytes,
      const lms_machine& machine);

  lms_simulation totals() const;

  plan::Trace trace;
  std::vector<int64_t> living; // bytes at each operator, with everything on the device
  plan::Plan planned;
  plan::Prediction on_demand;
};

} // namespace torch::cuda::lms
