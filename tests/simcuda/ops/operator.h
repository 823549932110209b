// The kernel that stands in for every CUDA kernel: it runs the operator's CPU kernel over the bytes
// of the CUDA tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace simops {

void run_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

// aten::copy_: what a GPU does with a memory copy goes to the device as one; what needs a kernel is
// run as an operator.
void run_copy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// How many operators ran, in this process.
long operators_run();

} // namespace simops
