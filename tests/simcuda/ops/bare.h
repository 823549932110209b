// CUDA kernels for a torch that was built without CUDA, which has none to stand in for: enough to
// make tensors, view, copy and read them. Everything else gets its CPU semantics.
#pragma once

#include <torch/library.h>

namespace simops {

// Whether this torch has no CUDA kernels of its own.
bool is_bare();

void install_bare(torch::Library& aten);

} // namespace simops
