#include <torch/csrc/cuda/lms/tier.h>

#include <torch/csrc/cuda/lms/guard.h>
#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/runtime.h>

namespace torch::cuda::lms {

namespace {

// The pager to ask for memory on the current device, or null: LMS is off, or
// this is the native allocator's own affair (a callback under the mutex).
Pager* current_pager() {
  Runtime& runtime = Runtime::get();
  if (!runtime.settings.enabled || Lock::held()) {
    return nullptr;
  }
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return &runtime.pager(device);
}

} // namespace

compat::cca::CUDAAllocator* Tier::install() {
  compat::cca::CUDAAllocator* const allocator = compat::cca::get();
  TORCH_CHECK(
      allocator && allocator->name() == "native",
      "LMS needs PyTorch's native CUDA caching allocator, and the one in use is ",
      allocator ? allocator->name() : "none",
      ". Unset PYTORCH_CUDA_ALLOC_CONF=backend:... and do not change the current allocator.");
  // Never destroyed: storages keep a pointer to their allocator.
  auto* const tier = new Tier(allocator);
  compat::cca::allocator.store(tier);
  // Storages remember the allocator to resize with, and newer versions of
  // PyTorch find the caching allocator here.
  c10::SetAllocator(c10::DeviceType::CUDA, tier, /*priority=*/100);
  return allocator;
}

c10::DataPtr Tier::allocate(size_t bytes) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  return pager ? pager->allocate(bytes) : target_->allocate(bytes);
}

void* Tier::raw_alloc(size_t bytes) {
  if (bytes == 0) {
    return target_->raw_alloc(bytes);
  }
  Pager* const pager = current_pager();
  if (!pager) {
    return target_->raw_alloc(bytes);
  }
  return pager->allocate_raw(bytes, c10::cuda::getCurrentCUDAStream());
}

void* Tier::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  return pager ? pager->allocate_raw(bytes, stream) : target_->raw_alloc_with_stream(bytes, stream);
}

void Tier::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get_deleter() != &Pager::deleter) {
    target_->recordStream(data, stream);
    return;
  }
  const Lock lock;
  auto& block = *static_cast<Block*>(data.get_context());
  block.pager.record_stream(block, stream);
}

// Memory that is cached on the host goes back to the system with the device's.
void Tier::cache_emptied() {
  const Lock lock;
  Runtime::get().each([](Pager& pager) { pager.trim_host(); });
}

void Tier::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  target_->setMemoryFraction(fraction, device);
  const Lock lock;
  if (Pager* const pager = Runtime::get().find(device)) {
    pager->limit_changed();
  }
}

void Tier::beginAllocateToPool(
    c10::DeviceIndex device,
    compat::MempoolId pool,
    std::function<bool(cudaStream_t)> filter) {
  target_->beginAllocateToPool(device, pool, std::move(filter));
  const Lock lock;
  Pager& pager = Runtime::get().pager(device);
  pager.pool_begins(pool);
  Guard::keep_pinned(pager);
}

void Tier::endAllocateToPool(c10::DeviceIndex device, compat::MempoolId pool) {
  target_->endAllocateToPool(device, pool);
  const Lock lock;
  Runtime::get().pager(device).pool_ends(pool);
}

void Tier::releasePool(c10::DeviceIndex device, compat::MempoolId pool) {
  target_->releasePool(device, pool);
  // Graphs share pools: one that goes does not end what another has begun.
  const bool gone = target_->getPoolUseCount(device, pool) == 0;
  const Lock lock;
  if (gone) {
    Runtime::get().pager(device).pool_released(pool);
  }
}

} // namespace torch::cuda::lms
