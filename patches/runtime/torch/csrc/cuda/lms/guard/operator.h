#pragma once

#include <torch/csrc/cuda/lms/guard/guard.h>

#include <ATen/record_function.h>

#include <cstddef>
#include <vector>

namespace torch::cuda::lms {

// What the guard has to know about an operator, from its schema.
struct Operator {
  using Kind = Guard::Kind;
  Kind kind = Kind::Opaque;

  // Still runs after the call has returned (torch.distributed).
  bool collective = false;

  // A range of the profiler, not an operator.
  bool range = false;

  // Its name stays valid until the process ends.
  bool lasting_name = false;

  // Which arguments may be written. Empty means that all of them may be.
  std::vector<bool> writes;

  bool may_write(size_t argument) const {
    return argument >= writes.size() || writes[argument];
  }

  static bool is_distributed(const char* name);

  // Does not throw. An operator that cannot be described is assumed to do anything.
  static const Operator& of(const at::RecordFunction& function);

  // Whether the guard has to see the operator no matter how much memory is in use. This is true for
  // torch.distributed, whose operators may still run after their call has returned.
  static bool needs_watch(const char* name) {
    return name[0] != 'a' && is_distributed(name); // nearly all names begin with "aten"
  }
};

} // namespace torch::cuda::lms
