#pragma once

#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <cstdint>
#include <vector>

namespace torch::cuda::lms::plan {

// Which gaps leave the device, so that at no operator more than `room` bytes stay: a flag for each
// gap. Room is given for each operator; where an operator needs more than that, it gets it.
//
// Furthest next use first, over iterations that repeat until the choice does. Blocks are not cut,
// so that takes more than it has to: what turns out needless comes back, a block is replaced by a
// smaller one that is enough, and by any that keep the links busy for less time together.
std::vector<bool> select(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Gap>& gaps,
    const std::vector<int64_t>& living,
    const std::vector<int64_t>& needed,
    const std::vector<int64_t>& room);

} // namespace torch::cuda::lms::plan
