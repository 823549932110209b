#pragma once

#include <string>

// Keeps compiled kernels on disk, in the folder where PyTorch keeps its own:
// $PYTORCH_KERNEL_CACHE_PATH, or torch/kernels in $XDG_CACHE_HOME or ~/.cache.
// USE_PYTORCH_KERNEL_CACHE=0 turns the cache off. The cache only saves time: if anything fails,
// kernels are compiled as if there were no cache.
namespace torch::cuda::lms::cache {

// A hash of the text, as 32 hexadecimal digits.
std::string digest(const std::string& text);

// The content of the entry with this name; empty if there is none, or if it is incomplete.
std::string read(const std::string& name);

void write(const std::string& name, const std::string& content);

} // namespace torch::cuda::lms::cache
