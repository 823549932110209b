#pragma once

#include <torch/csrc/cuda/lms/guard/guard.h>

#include <ATen/record_function.h>

#include <cstddef>
#include <vector>

namespace torch::cuda::lms {

// What the guard must know of an operator, from its schema.
struct Operator {
  using Kind = Guard::Kind;
  Kind kind = Kind::Opaque;

  // Runs on after the call returns (torch.distributed).
  bool collective = false;

  // A range of the profiler's, and no operator.
  bool range = false;

  // Its name is valid for as long as the process lives.
  bool lasting_name = false;

  // Which arguments may be written; empty: any of them.
  std::vector<bool> writes;

  bool may_write(size_t argument) const {
    return argument >= writes.size() || writes[argument];
  }

  static bool is_distributed(const char* name);

  // Does not throw: what cannot be described may do anything.
  static const Operator& of(const at::RecordFunction& function);

  // Whether the guard must see it wherever memory stands: torch.distributed's, which may run on
  // after their call.
  static bool needs_watch(const char* name) {
    return name[0] != 'a' && is_distributed(name); // nearly all are aten's
  }
};

} // namespace torch::cuda::lms
