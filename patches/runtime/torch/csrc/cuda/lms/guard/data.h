#pragma once

#include <torch/csrc/cuda/lms/codec/kind.h>

#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include <array>
#include <cstddef>

namespace torch::cuda::lms {

// The kind of a tensor's data, for compression.
inline codec::Kind kind_of(const c10::TensorImpl& tensor) {
  constexpr size_t kTypes = static_cast<size_t>(c10::ScalarType::NumOptions);
  static const std::array<codec::Kind, kTypes> kinds = [] {
    std::array<codec::Kind, kTypes> found{};
    for (size_t i = 0; i < kTypes; ++i) {
      found[i] = codec::kind_of(c10::toString(static_cast<c10::ScalarType>(i)));
    }
    return found;
  }();
  caffe2::TypeMeta type = tensor.dtype(); // not const: toScalarType() is not before 2.10
  return type.isScalarType() ? kinds[static_cast<size_t>(type.toScalarType())] : codec::Kind::None;
}

} // namespace torch::cuda::lms
