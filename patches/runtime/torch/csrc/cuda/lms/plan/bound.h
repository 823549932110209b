#pragma once

#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <cstdint>
#include <vector>

namespace torch::cuda::lms::plan {

// What no plan can be better than, if it plays the trace in its order. docs/architecture.md has the
// formulas.
struct Bound {
  double seconds = 0; // of one iteration
  int64_t bytes_in = 0; // the optimum if blocks could leave in part
  int64_t bytes_out = 0; // the same, if a block's uses between two writes did not need it, either
  int64_t excess_bytes = 0; // the peak above the limit

  // max(before the peak, excess / out) + max(from the peak on, excess / in). Not a bound where
  // blocks leave that live across iterations: their copies need not wait for an iteration's start.
  double one_hill_seconds = 0;
};

Bound bound_of(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Gap>& gaps,
    const std::vector<int64_t>& living);

} // namespace torch::cuda::lms::plan
