#include <torch/csrc/cuda/lms/tier/tier.h>

#include <torch/csrc/cuda/lms/tier/common.h>

namespace torch::cuda::lms {

compat::cca::CUDAAllocator* Tier::install() {
  compat::cca::CUDAAllocator* const allocator = compat::cca::get();
  TORCH_CHECK(
      allocator && allocator->name() == "native",
      "LMS needs PyTorch's native CUDA caching allocator, but the one in use is ",
      allocator ? allocator->name() : "none",
      ". Unset PYTORCH_CUDA_ALLOC_CONF=backend:... and do not change the current allocator.");
  // Never destroyed, because storages keep pointers to their allocator.
  auto* const tier = new Tier(allocator);
  compat::cca::allocator.store(tier);
  // Storages use this allocator when they are resized, and newer versions of PyTorch get the
  // caching allocator from here.
  c10::SetAllocator(c10::DeviceType::CUDA, tier, /*priority=*/100);
  Runtime::get().tier = tier;
  Runtime::get().before = allocator;
  return allocator;
}

c10::DataPtr Tier::allocate(size_t bytes) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  return pager ? pager->room.allocate(bytes)
               : past_pagers(bytes, [&] { return target_->allocate(bytes); });
}

// Asked for storages that are about to share their memory until it is written. They take over the
// context, and take it for the address. So LMS stops to manage the memory; the storage that has it
// alone in the end is adopted like any other.
bool Tier::is_simple_data_ptr(const c10::DataPtr& data) const {
  if (data.get_deleter() == &Registry::deleter) {
    const Lock lock;
    auto& block = *static_cast<Block*>(data.get_context());
    if (!block.pager.disown(block, const_cast<c10::DataPtr&>(data))) {
      return false;
    }
  }
  return target_->is_simple_data_ptr(data);
}

void* Tier::raw_alloc(size_t bytes) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  return pager ? pager->room.allocate_raw(bytes, c10::cuda::getCurrentCUDAStream())
               : past_pagers(bytes, [&] { return target_->raw_alloc(bytes); });
}

void* Tier::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  return pager ? pager->room.allocate_raw(bytes, stream)
               : past_pagers(bytes, [&] { return target_->raw_alloc_with_stream(bytes, stream); });
}

void Tier::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (!record_managed(data, stream)) {
    target_->recordStream(data, stream);
  }
}

void Tier::emptying_cache() {
  give_back_limbo();
}

void Tier::cache_emptied() {
  trim_host();
}

void Tier::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  target_->setMemoryFraction(fraction, device);
  fraction_changed(device, fraction);
}

// Returns the user's fraction, not the one that enforces a limit at present.
double Tier::getMemoryFraction(c10::DeviceIndex device) {
  const Lock lock;
  Pager* const pager = Runtime::get().find(device);
  return pager ? pager->room.limit().cap().share()
               : Runtime::get().native->getMemoryFraction(device);
}

// cuDNN chooses its algorithms by how much memory it can get. A value of 0 on entry asks for the
// device's free memory, too.
void Tier::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  if (*largest == 0 && Runtime::get().settings.enabled && !Lock::held() && !Lock::forked()) {
    const Lock lock;
    *largest = std::max<size_t>(Runtime::get().pager(device).room.obtainable_bytes(), 1);
  }
  target_->cacheInfo(device, largest);
}

void Tier::beginAllocateToPool(
    c10::DeviceIndex device,
    compat::MempoolId pool,
    std::function<bool(cudaStream_t)> filter) {
  target_->beginAllocateToPool(device, pool, filter);
  pool_began(Runtime::get().pager(device), pool, std::move(filter));
}

void Tier::endAllocateToPool(c10::DeviceIndex device, compat::MempoolId pool) {
  target_->endAllocateToPool(device, pool);
  pool_ended(Runtime::get().pager(device), pool);
}

void Tier::releasePool(c10::DeviceIndex device, compat::MempoolId pool) {
  target_->releasePool(device, pool);
  // Graphs share pools, so a pool may still be in use after one graph has released it.
  if (target_->getPoolUseCount(device, pool) == 0) {
    Runtime::get().pager(device).pools.released(pool);
  }
}

} // namespace torch::cuda::lms
