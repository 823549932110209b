#include "launch.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>

#include "../device/control.h"
#include "release.h"

namespace simops {
namespace {

void* data_of(const at::Tensor& tensor) {
  return address_of(*tensor.storage().unsafeGetStorageImpl());
}

// The bytes between a tensor's first and last element, as an offset into its storage and a size.
std::pair<size_t, size_t> extent(const at::Tensor& tensor) {
  if (tensor.numel() == 0)
    return {0, 0};
  int64_t elements = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    elements += (tensor.size(i) - 1) * tensor.stride(i);
  return {
      static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize(),
      static_cast<size_t>(elements) * tensor.itemsize()};
}

#if TORCH_VERSION_MAJOR >= 2
void on_allocator_event(const c10::cuda::CUDACachingAllocator::TraceEntry& entry) {
  using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;
  void* address = reinterpret_cast<void*>(entry.addr_);
  if (entry.action_ == Entry::ALLOC)
    simcuda_block_allocated(address, entry.size_);
  if (entry.action_ == Entry::FREE_REQUESTED)
    simcuda_block_freed(address, entry.size_);
}
#endif

} // namespace

Launch::Launch(const std::string& name, c10::Device device)
    : name_(name),
      device_(device),
      stream_(c10::cuda::getCurrentCUDAStream(device.index()).stream()) {
  begin();
}

void Launch::begin() {
  const int error = simcuda_operator_begin(stream_, device_.index());
  TORCH_CHECK(error == 0, "simulated device: ", name_, " cannot run on its stream, error ", error);
}

void Launch::use(const at::Tensor& tensor, bool write) {
  const auto [offset, size] = extent(tensor);
  char* data = static_cast<char*>(data_of(tensor));
  if (size == 0)
    return;
  TORCH_CHECK(data != nullptr, "simulated device: ", name_, " uses a tensor that has no memory");
  TORCH_CHECK(
      simcuda_is_live(data + offset, size),
      "CUDA error: an illegal memory access was encountered\n",
      name_,
      ": the ",
      size,
      " bytes at ",
      static_cast<void*>(data + offset),
      " are not live memory");
  uses_.push_back({tensor, data, offset, size, write});
}

void Launch::moved(const at::Tensor& tensor) {
  uses_.erase(
      std::remove_if(
          uses_.begin(), uses_.end(), [&](const Use& use) { return use.tensor.is_same(tensor); }),
      uses_.end());
  use(tensor, true);
}

void Launch::record() {
  begin();
  for (const Use& use : uses_) {
    TORCH_CHECK(
        data_of(use.tensor) == use.data,
        "simulated device: a tensor that ",
        name_,
        " uses was moved while the operator ran");
    simcuda_operator_access(stream_, use.data + use.offset, use.size, use.write, name_.c_str());
  }
}

void follow_allocator() {
#if TORCH_VERSION_MAJOR >= 2 // before, the allocator told nobody
  static std::atomic<bool> following{false};
  if (following || !c10::cuda::CUDACachingAllocator::get()->initialized())
    return;
  if (following.exchange(true))
    return;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(on_allocator_event);
#endif
}

} // namespace simops
