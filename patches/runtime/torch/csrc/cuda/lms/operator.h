#pragma once

#include <torch/csrc/cuda/lms/guard.h>

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

  // DistributedDataParallel's reducer, around what it does to a bucket of
  // gradients; and detach(), by which a gradient becomes a parameter's.
  bool reducer = false;
  bool detach = false;

  // Which arguments may be written; empty: any of them.
  std::vector<bool> writes;

  bool may_write(size_t argument) const {
    return argument >= writes.size() || writes[argument];
  }

  static bool is_distributed(const char* name);

  static const Operator& of(const at::RecordFunction& function);

  // Whether the guard must see it wherever memory stands: torch.distributed's, which may run on
  // after their call, and whose reducer compares storages.
  static bool needs_watch(const char* name) {
    return name[0] != 'a' && is_distributed(name); // nearly all are aten's
  }
};

} // namespace torch::cuda::lms
