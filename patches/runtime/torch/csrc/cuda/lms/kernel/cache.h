#pragma once

#include <string>

// Compiled kernels on disk, in the folder where PyTorch keeps its own:
// $PYTORCH_KERNEL_CACHE_PATH, or torch/kernels below $XDG_CACHE_HOME or ~/.cache.
// USE_PYTORCH_KERNEL_CACHE=0 turns it off. It is a short cut: whatever goes wrong
// here is as if there were none.
namespace torch::cuda::lms::cache {

// 32 hexadecimal digits that stand for a text.
std::string digest(const std::string& text);

// What was kept under a name; empty when that is nothing, or not whole.
std::string read(const std::string& name);

void write(const std::string& name, const std::string& content);

} // namespace torch::cuda::lms::cache
