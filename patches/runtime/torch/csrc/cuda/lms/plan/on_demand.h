#pragma once

#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

namespace torch::cuda::lms::plan {

// For comparison: what an iteration takes without a plan. When memory is missing, the blocks leave
// that were not used for the longest time; a block is fetched when an operator needs it. An
// operator that alone needs more than the limit gets it, and nothing else stays then.
Prediction on_demand(const Trace& trace, const Machine& machine, int iterations = 12);

} // namespace torch::cuda::lms::plan
