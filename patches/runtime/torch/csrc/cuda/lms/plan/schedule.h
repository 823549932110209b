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

// When the chosen gaps' blocks leave and come back. Copies start right after the last write, in the
// order of the last uses. Memory is given up when the copy has ended, or before the operator that
// waits for it. Fetches are issued in the order in which their blocks are needed, in time for the
// link, and earlier where there is memory. A block that would come back before its memory is free
// for others stays.
Schedule early_schedule(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Gap>& gaps,
    const std::vector<bool>& chosen,
    const std::vector<int64_t>& living);

// The same moves with fetches as late as the link allows, where that costs no time, and drops
// where memory is first needed: so that less depends on the plan when a program departs from it.
Schedule late_schedule(const Trace& trace, const Machine& machine, const Schedule& early);

// The same moves with drops that come earlier, by this part of the operators since the last use;
// all of them is 1. Less memory is in use then while copies wait for the link, but an operator that
// gets such memory may have to wait for the copy, although other memory is free.
std::vector<Move> earlier_drops(std::vector<Move> moves, double part);

} // namespace torch::cuda::lms::plan
