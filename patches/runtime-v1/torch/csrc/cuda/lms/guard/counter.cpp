// What an operator uses is known by its accesses, and all of these are seen: there is nothing
// cheaper.

#include <torch/csrc/cuda/lms/guard/counter.h>

namespace torch::cuda::lms {

bool Counter::install() {
  return false;
}

void Counter::remove() {}

bool Counter::none_runs() {
  return true;
}

bool Counter::in_operator() {
  return false;
}

} // namespace torch::cuda::lms
