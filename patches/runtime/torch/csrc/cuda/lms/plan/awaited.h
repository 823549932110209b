#pragma once

#include <torch/csrc/cuda/lms/plan/plan.h>

namespace torch::cuda::lms::plan {

// Sets Move::awaited, from what the plan predicts.
void find_awaited(Plan& plan);

} // namespace torch::cuda::lms::plan
