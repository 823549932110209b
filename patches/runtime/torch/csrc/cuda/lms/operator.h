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

  static const Operator& of(const at::RecordFunction& function);
};

} // namespace torch::cuda::lms
