#pragma once

#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/plan/replay.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <cstdint>
#include <vector>

namespace torch::cuda::lms::plan {

struct Schedule {
  std::vector<Move> moves;
  Replay replay; // of these moves
};

// When the chosen gaps' blocks leave and come back. Copies start right after the last use. Memory
// is given up when the copy has ended, or before the operator that waits for it. Fetches are
// issued in the order in which their blocks are needed, in time for the link, and earlier where
// there is memory. A block that would come back before its memory is free for others stays.
Schedule early_schedule(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Gap>& gaps,
    const std::vector<bool>& chosen,
    const std::vector<int64_t>& living);

// The same moves with fetches as late as the link allows, where that costs no time, and drops
// where memory is first needed: so that less depends on the plan when a program departs from it.
Schedule late_schedule(const Trace& trace, const Machine& machine, const Schedule& early);

} // namespace torch::cuda::lms::plan
