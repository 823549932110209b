// In this release, the guard sees every access to a storage, and learns from these what an operator
// uses. There is no cheaper way to count operators.

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

bool Counter::count() {
  return true; // what the code accesses is brought at each access
}

void Counter::uncount() {}

} // namespace torch::cuda::lms
