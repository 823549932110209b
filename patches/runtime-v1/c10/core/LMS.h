#pragma once

// Where Large Model Support (LMS) is told of storages and operators. The runtime
// is in libc10_cuda; without it, or while LMS is off, these cost a load and a
// branch.

#include <c10/core/Allocator.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <cstddef>

namespace c10 {

struct StorageImpl;
struct TensorImpl;

namespace lms {

struct Hooks {
  // The address of a CUDA storage is needed: its bytes are brought to the
  // device, and stay until the operator of this thread ends. Outside of an
  // operator they stay until the storage dies or is released. Throws c10::Error.
  void* (*address)(const StorageImpl& storage);

  // An operator of this thread begins, which writes these tensors, and ends.
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

// An operator, from its construction on: generated into each of them.
class Operator {
 public:
  // The name must live as long as the process. Undefined tensors are allowed.
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
  const Hooks* const on_; // LMS may be turned off meanwhile
};

} // namespace lms
} // namespace c10
