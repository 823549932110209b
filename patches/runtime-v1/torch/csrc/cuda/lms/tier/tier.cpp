#include <torch/csrc/cuda/lms/tier/tier.h>

#include <torch/csrc/cuda/lms/device/active.h>
#include <torch/csrc/cuda/lms/tier/common.h>

namespace torch::cuda::lms {

namespace {

// Whether to handle calls of the native allocator's functions. Calls by LMS itself are ignored.
bool listening() {
  return Runtime::get().native && !Lock::held() && !compat::cca::OwnCall::now();
}

} // namespace

Tier* Tier::in_front_of(c10::Allocator* native) {
  // Never destroyed, because storages keep pointers to their allocator.
  static auto* const tier = new Tier(native);
  return tier;
}

compat::cca::CUDAAllocator* Tier::install() {
  // get() has already put the tier in front.
  auto* const tier = static_cast<Tier*>(compat::cca::native::get());
  return new compat::cca::CUDAAllocator(tier->native_);
}

c10::DataPtr Tier::allocate(size_t bytes) const {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  if (!pager) {
    return past_pagers(bytes, [&] { return native_->allocate(bytes); });
  }
  c10::DataPtr memory = pager->room.allocate(bytes);
  count_active(memory.device().index());
  return memory;
}

c10::DeleterFnPtr Tier::raw_deleter() const {
  return native_->raw_deleter();
}

void* Tier::raw_allocate(size_t bytes) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  if (!pager) {
    return past_pagers(bytes, [&] { return native_->raw_allocate(bytes); });
  }
  void* const memory = pager->room.allocate_raw(bytes, c10::cuda::getCurrentCUDAStream());
  count_active(c10::cuda::current_device());
  return memory;
}

void* Tier::raw_allocate(size_t bytes, cudaStream_t stream, compat::cca::RawAlloc native) {
  Pager* const pager = bytes == 0 ? nullptr : current_pager();
  if (!pager) {
    return past_pagers(bytes, [&] { return native(bytes, stream); });
  }
  Runtime::get().native->set_raw_alloc(native);
  void* const memory = pager->room.allocate_raw(bytes, stream);
  count_active(c10::cuda::current_device());
  return memory;
}

void Tier::recorded(void* address, c10::cuda::CUDAStream stream) {
  if (!listening()) {
    return;
  }
  const Lock lock;
  Runtime::get().each([&](Pager& pager) {
    if (Block* const block = address ? pager.registry.find(address) : nullptr) {
      pager.record_stream(*block, stream);
    }
  });
}

void Tier::recorded(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (listening()) {
    record_managed(data, stream);
  }
}

void Tier::emptied() {
  if (listening()) {
    trim_host();
  }
}

} // namespace torch::cuda::lms
