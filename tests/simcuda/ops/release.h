// Where torch's releases differ.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <cstring>
#include <optional>

namespace simops {

#if TORCH_VERSION_MAJOR >= 2

template <class T>
using Optional = std::optional<T>;
inline constexpr std::nullopt_t kNone = std::nullopt;

using WarningGuard = c10::WarningUtils::WarningHandlerGuard;

class Quiet : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

inline void* address_of(c10::StorageImpl& storage) {
  return storage.mutable_data();
}

inline uint64_t offset_of(const at::Generator& cuda) {
  return cuda.get_offset();
}

inline void set_offset(at::Generator cuda, uint64_t offset) {
  cuda.set_offset(offset);
}

inline void choose_plain_kernels(at::Context& context) {
  context.setUserEnabledCuDNN(false);
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
}

#else

template <class T>
using Optional = c10::optional<T>;
inline constexpr c10::nullopt_t kNone = c10::nullopt;

using WarningGuard = c10::Warning::WarningHandlerGuard;

class Quiet : public c10::WarningHandler {
 public:
  void process(const c10::SourceLocation&, const std::string&, const bool) override {}
};

inline void* address_of(c10::StorageImpl& storage) {
  return storage.data();
}

// The generator's state is its seed and its offset.
inline uint64_t offset_of(const at::Generator& cuda) {
  const at::Tensor state = cuda.get_state();
  uint64_t offset = 0;
  std::memcpy(&offset, state.data_ptr<uint8_t>() + sizeof(uint64_t), sizeof offset);
  return offset;
}

inline void set_offset(at::Generator cuda, uint64_t offset) {
  const at::Tensor state = cuda.get_state();
  std::memcpy(state.data_ptr<uint8_t>() + sizeof(uint64_t), &offset, sizeof offset);
  cuda.set_state(state);
}

inline void choose_plain_kernels(at::Context& context) {
  context.setUserEnabledCuDNN(false);
}

#endif

} // namespace simops
