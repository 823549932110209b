#include <torch/csrc/cuda/lms/base/operation.h>

#include <torch/csrc/cuda/lms/compat/compat.h>

#include <cxxabi.h>

#include <utility>

namespace torch::cuda::lms {

Operation& Operation::current() {
  static thread_local Operation instance;
  return instance;
}

void Operation::refuse(c10::DeviceIndex device, size_t bytes) {
  if (name) {
    refusal = {device, bytes, exceptions()};
  }
}

void Operation::check() {
  if (C10_UNLIKELY(!failure.message.empty())) {
    std::exchange(failure, {}).raise();
  }
}

void Operation::Failure::raise() const {
  if (memory) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
  TORCH_CHECK(false, message);
}

// Does what std::uncaught_exceptions() does, which is missing in the libstdc++ of the oldest
// systems that the wheels support. The layout is specified in the Itanium C++ ABI (2.2.2).
unsigned Operation::exceptions() {
  struct Globals {
    void* caught;
    unsigned uncaught;
  };
  return reinterpret_cast<const Globals*>(abi::__cxa_get_globals())->uncaught;
}

} // namespace torch::cuda::lms
