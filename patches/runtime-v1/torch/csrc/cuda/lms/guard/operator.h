#pragma once

#include <torch/csrc/cuda/lms/guard/guard.h>

namespace torch::cuda::lms {

// What the guard has to know about an operator, from its name. The tensors that it writes come from
// generated code.
struct Operator {
  Guard::Kind kind = Guard::Kind::Opaque;

  // Writes arguments that its schema does not mark, so any argument may be written.
  bool writes_all = false;

  // The name must stay valid until the process ends.
  static const Operator& of(const char* name);
};

} // namespace torch::cuda::lms
