// Operators of an extension, which read addresses themselves.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace {

int64_t address(const at::Tensor& x) {
  return reinterpret_cast<int64_t>(x.data_ptr());
}

// Whether the address stays the same while memory is allocated.
bool stays(const at::Tensor& x) {
  const void* const before = x.data_ptr();
  const at::Tensor scratch = x.clone();
  return before != nullptr && x.data_ptr() == before && scratch.data_ptr() != before;
}

} // namespace

TORCH_LIBRARY(lms_extension, library) {
  library.def("address(Tensor x) -> int");
  library.def("stays(Tensor x) -> bool");
  library.impl("address", c10::DispatchKey::CUDA, address);
  library.impl("stays", c10::DispatchKey::CUDA, stays);
}
