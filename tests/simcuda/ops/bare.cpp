#include "bare.h"

#include "release.h"

#if TORCH_VERSION_MAJOR >= 2

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>
#include <optional>

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(DeviceIndex)); // no header has it
}

namespace simops {
namespace {

using at::Tensor;

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

// The device of an option, the current one when it has no number.
c10::Device device_of(std::optional<c10::Device> device) {
  return device && device->has_index() ? *device
                                       : c10::Device(c10::kCUDA, c10::cuda::current_device());
}

c10::Allocator* allocator() {
  static std::once_flag initialized;
  std::call_once(
      initialized, [] { c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count()); });
  return c10::cuda::CUDACachingAllocator::get();
}

Tensor empty(
    c10::SymIntArrayRef sizes,
    std::optional<at::ScalarType> type,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(sizes), allocator(), kCuda, type.value_or(at::kFloat), format);
}

Tensor empty_strided(
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    std::optional<at::ScalarType> type,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(sizes),
      C10_AS_INTARRAYREF_SLOW(strides),
      allocator(),
      kCuda,
      type.value_or(at::kFloat));
}

Tensor as_strided(
    const Tensor& self,
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self,
      C10_AS_INTARRAYREF_SLOW(sizes),
      C10_AS_INTARRAYREF_SLOW(strides),
      offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

// On the current stream of the CUDA tensor's device; with the host it waits.
Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  TORCH_CHECK(
      self.dtype() == source.dtype() && self.sizes() == source.sizes() && self.is_contiguous() &&
          source.is_contiguous(),
      "simulated device: this torch copies only contiguous tensors of one type");
  const c10::Device device = self.is_cuda() ? self.device() : source.device();
  const c10::DeviceGuard guard(device);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device.index());
  C10_CUDA_CHECK(cudaMemcpyAsync(
      self.mutable_data_ptr(), source.const_data_ptr(), self.nbytes(), cudaMemcpyDefault, stream));
  if (!self.is_cuda() || !source.is_cuda())
    C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return self;
}

at::Scalar local_scalar(const Tensor& self) {
  return at::empty({}, self.options().device(c10::kCPU)).copy_(self.view({})).item();
}

} // namespace

bool is_bare() {
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::empty", "memory_format"});
  return !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

void install_bare(torch::Library& aten) {
  // libtorch_cuda would ask the driver.
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  aten.impl("empty.memory_format", empty);
  aten.impl("empty_strided", empty_strided);
  aten.impl("as_strided", as_strided);
  aten.impl("view", view);
  aten.impl("copy_", copy_);
  aten.impl("_local_scalar_dense", local_scalar);
}

} // namespace simops

#else // only newer releases are tested without their CUDA kernels

namespace simops {

bool is_bare() {
  return false;
}

void install_bare(torch::Library&) {}

} // namespace simops

#endif
