#pragma once

#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

namespace torch::cuda::lms::plan {

// What leaves the device and when, so that an iteration keeps the limit and takes as little time as
// was found. A plan that is returned with moves was replayed without a fault.
Plan plan(const Trace& trace, const Machine& machine);

// A plan that copies all bytes of each block; but one that counts on the blocks' shares if
// operators would wait for transfers otherwise.
Plan plan_with_compression(const Trace& trace, const Machine& machine);

} // namespace torch::cuda::lms::plan
