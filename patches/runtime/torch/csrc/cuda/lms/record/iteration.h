#pragma once

#include <torch/csrc/cuda/lms/plan/trace.h>
#include <torch/csrc/cuda/lms/record/trace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::cuda::lms {

// The iteration that these events are, as the planner takes it. The index of each block is one less
// than its number.
plan::Trace iteration(
    const std::vector<TraceEvent>& events,
    const std::vector<std::string>& names,
    int64_t unmanaged);

// The iteration between the last two steps of a recording, as the planner takes it. Without two
// steps it has no operators. `unmanaged` is in bytes.
//
// A block that is allocated in one iteration and freed in the next becomes two blocks: one from
// the allocation to the end, and one from the beginning to the free. The time between two marks is
// shared equally by the operators between them.
plan::Trace last_iteration(
    const std::vector<TraceEvent>& events,
    const std::vector<std::string>& names,
    int64_t unmanaged);

} // namespace torch::cuda::lms
