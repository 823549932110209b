#pragma once

#include <torch/csrc/cuda/lms/guard/guard.h>

namespace torch::cuda::lms {

// What the guard must know of an operator, from its name. What it writes is
// generated from its schema.
struct Operator {
  Guard::Kind kind = Guard::Kind::Opaque;

  // Writes arguments that its schema does not mark: any of them may be.
  bool writes_all = false;

  // The name must live as long as the process.
  static const Operator& of(const char* name);
};

} // namespace torch::cuda::lms
