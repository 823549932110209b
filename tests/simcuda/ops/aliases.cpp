#include "aliases.h"

#include <ATen/ops/as_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include "../device/control.h"
#include "release.h"

namespace simops {
namespace {

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

} // namespace

const Aliases::SharedStorage& Aliases::share(const at::Tensor& cuda) {
  c10::StorageImpl* storage = storage_of(cuda);
  for (const SharedStorage& known : storages_) {
    if (known.cuda == storage)
      return known;
  }
  void* data = address_of(*storage);
  void* view = data != nullptr ? simcuda_host_view(data) : nullptr;
  c10::Storage cpu(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(),
          storage->nbytes(),
          at::DataPtr(view, at::kCPU),
          c10::GetCPUAllocator(),
          /*resizable=*/true));
  storages_.push_back({storage, view, std::move(cpu)});
  return storages_.back();
}

const Aliases::SharedStorage* Aliases::shared(const c10::StorageImpl* cpu) const {
  for (const SharedStorage& known : storages_) {
    if (known.cpu.unsafeGetStorageImpl() == cpu)
      return &known;
  }
  return nullptr;
}

at::Tensor Aliases::of(const at::Tensor& cuda) {
  for (const auto& [known, alias] : tensors_) {
    if (known.is_same(cuda))
      return alias;
  }
  TORCH_CHECK(
      cuda.layout() == at::kStrided,
      "simulated device: the layout ",
      cuda.layout(),
      " is not supported");
  c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  if (cuda.is_conj())
    keys = keys.add(c10::DispatchKey::Conjugate);
  if (cuda.is_neg())
    keys = keys.add(c10::DispatchKey::Negative);
  at::Tensor alias =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(share(cuda).cpu), keys, cuda.dtype());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(
      cuda.sizes(), cuda.strides(), cuda.storage_offset());
  if (cuda.unsafeGetTensorImpl()->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  tensors_.emplace_back(cuda, alias);
  return alias;
}

at::Tensor Aliases::original(const at::Tensor& cpu) const {
  for (const auto& [cuda, alias] : tensors_) {
    if (alias.is_same(cpu))
      return cuda;
  }
  return {};
}

at::Tensor Aliases::original_view(const at::Tensor& cpu) const {
  if (!cpu.has_storage())
    return {};
  const SharedStorage* storage = shared(storage_of(cpu));
  if (storage == nullptr || storage->view == nullptr || storage->cpu.data() != storage->view)
    return {};
  for (const auto& [cuda, alias] : tensors_) {
    if (storage_of(cuda) != storage->cuda)
      continue;
    return at::as_strided(cuda, cpu.sizes(), cpu.strides(), cpu.storage_offset());
  }
  return {};
}

std::vector<std::pair<at::Tensor, at::Tensor>> Aliases::resized() const {
  std::vector<std::pair<at::Tensor, at::Tensor>> changed;
  for (const auto& [cuda, alias] : tensors_) {
    const SharedStorage* storage = shared(storage_of(alias));
    const bool moved = storage == nullptr || storage->cpu.data() != storage->view;
    if (moved || alias.sizes() != cuda.sizes() || alias.strides() != cuda.strides()) {
      changed.emplace_back(cuda, alias);
    }
  }
  return changed;
}

} // namespace simops
