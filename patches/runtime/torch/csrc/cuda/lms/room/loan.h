#pragma once

#include <torch/csrc/cuda/lms/base/lock.h>

#include <c10/core/Allocator.h>

#include <utility>

namespace torch::cuda::lms {

// Memory that goes back to the native allocator later, because the mutex is held.
struct Loan {
  explicit Loan(at::DataPtr from) : memory(std::move(from)) {}
  Loan(Loan&&) = default;
  Loan& operator=(Loan&&) = delete;
  ~Loan() {
    if (memory) {
      Lock::drop_later(std::move(memory));
    }
  }
  at::DataPtr memory;
};

} // namespace torch::cuda::lms
