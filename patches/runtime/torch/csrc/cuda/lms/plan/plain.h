#pragma once

#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/replay.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <vector>

namespace torch::cuda::lms::plan {

// Decides which blocks of a plan need no compression, because the iteration takes no longer, or
// hardly longer, if they are copied as they are. Kernels that compress take multiprocessors from
// the operators, and the planner knows nothing of that otherwise. Sets Move::packs and the
// prediction. `handovers` are those of the plan's moves.
void copy_plainly(
    const Trace& trace,
    const Machine& machine,
    Plan& plan,
    const std::vector<Handover>& handovers = {});

} // namespace torch::cuda::lms::plan
