#pragma once

// Tells Large Model Support (LMS) about storages and operators. The runtime is in libc10_cuda.
// Without it, or while LMS is off, each call costs one load and one branch.

#include <c10/core/Allocator.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <cstddef>

namespace c10 {

struct StorageImpl;
struct TensorImpl;

namespace lms {

struct Hooks {
  // Called when the address of a CUDA storage is needed. Pages the storage in and keeps it on the
  // device until this thread's operator ends. Outside of operators, it stays until the storage is
  // freed or released. Throws c10::Error.
  void* (*address)(const StorageImpl& storage);

  // Called when an operator of this thread, which writes these tensors, begins, and when it ends.
  void (*begin)(const char* name, TensorImpl* const* written, size_t count);
  void (*end)();
};

// Null while LMS is off.
C10_API extern std::atomic<const Hooks*> hooks;

inline void* address(const StorageImpl& storage, const DataPtr& data) {
  const Hooks* const on = hooks.load(std::memory_order_acquire);
  if (C10_LIKELY(!on || data.device().type() != DeviceType::CUDA)) {
    return data.get();
  }
  return on->address(storage);
}

// Exists while an operator runs. The code generator adds one to each operator.
class Operator {
 public:
  // The name must stay valid until the process ends. Tensors may be undefined.
  template <class... Tensors>
  explicit Operator(const char* name, const Tensors&... written)
      : on_(hooks.load(std::memory_order_acquire)) {
    if (C10_UNLIKELY(on_ != nullptr)) {
      TensorImpl* const tensors[] = {
          (written.defined() ? written.unsafeGetTensorImpl() : nullptr)..., nullptr};
      on_->begin(name, tensors, sizeof...(written));
    }
  }
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;
  ~Operator() {
    if (C10_UNLIKELY(on_ != nullptr)) {
      on_->end();
    }
  }

 private:
  const Hooks* const on_; // remembered, because LMS may be turned off before the destructor runs
};

} // namespace lms
} // namespace c10
