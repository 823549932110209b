// CPU semantics for operators that only CUDA implements, written with operators that the CPU has.
#pragma once

#include <ATen/core/stack.h>

#include <string>

namespace simops {

// Takes the operator's arguments, CPU tensors, off the stack and leaves its results there.
using Substitute = void (*)(torch::jit::Stack& stack);

// The substitute of an operator ("aten::name", any overload), or nullptr.
Substitute find_substitute(const std::string& name);

} // namespace simops
