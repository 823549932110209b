// CPU tensors over the same bytes as CUDA tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace simops {

class Aliases {
 public:
  // The CPU tensor over the bytes of a strided CUDA tensor. Tensors that share a storage get
  // aliases that share one.
  at::Tensor of(const at::Tensor& cuda);

  // The CUDA tensor that the CPU tensor is the alias of, or an undefined tensor.
  at::Tensor original(const at::Tensor& cpu) const;
  // The CUDA tensor that covers what a CPU view of an alias covers, or an undefined tensor.
  at::Tensor original_view(const at::Tensor& cpu) const;

  // The CUDA tensors whose alias an operator resized, with that alias.
  std::vector<std::pair<at::Tensor, at::Tensor>> resized() const;

 private:
  struct SharedStorage {
    c10::StorageImpl* cuda;
    void* view; // of the storage's first byte, when the alias was made
    c10::Storage cpu;
  };

  const SharedStorage& share(const at::Tensor& cuda);
  const SharedStorage* shared(const c10::StorageImpl* cpu) const;

  std::vector<SharedStorage> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_; // CUDA tensor, alias
};

} // namespace simops
