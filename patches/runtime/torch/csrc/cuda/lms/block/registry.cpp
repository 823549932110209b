#include <torch/csrc/cuda/lms/block/registry.h>

#include <torch/csrc/cuda/lms/base/lock.h>

#include <algorithm>
#include <utility>

namespace torch::cuda::lms {

Block* Registry::block_of(c10::StorageImpl& storage) {
  const at::DataPtr& data = compat::data_ptr(storage);
  return data.get_deleter() == &Registry::deleter ? static_cast<Block*>(data.get_context())
                                                  : nullptr;
}

bool Registry::is_native(const at::DataPtr& memory) const {
  return memory.get() != nullptr && memory.device().is_cuda() &&
         memory.get_deleter() == native_deleter_ && memory.get_context() == memory.get();
}

at::DataPtr Registry::own(at::DataPtr memory, size_t bytes, c10::cuda::CUDAStream home) {
  if (!is_native(memory) || bytes < kLeast) {
    return memory;
  }
  void* const data = memory.get();
  const c10::Device device = memory.device();
  auto* const block = new Block(*this, pager_, std::move(memory), bytes);
  block->home = home;
  blocks_.insert(block);
  listener_.born(*block);
  return at::DataPtr(data, block, &Registry::deleter, device);
}

Block* Registry::adopt(c10::StorageImpl& storage) {
  at::DataPtr& data = compat::data_ptr(storage);
  const c10::Device device = data.device();
  void* const address = data.get();
  // Another thread's operator that saw the storage unmanaged may be reading the address at this
  // moment. Therefore the address must never become null in between.
  at::DataPtr native(address, data.release_context(), native_deleter_, device);
  auto* const block = new Block(*this, pager_, std::move(native), compat::nbytes(storage));
  data = at::DataPtr(address, block, &Registry::deleter, device);
  blocks_.insert(block);
  ++stats_.adopted;
  return block;
}

void Registry::disown(Block& block, at::DataPtr& held) {
  // What is left to the block says where the memory is, and frees nothing.
  at::DataPtr native =
      std::exchange(block.memory, at::DataPtr(block.memory.get(), block.memory.device()));
  held.release_context();
  held = std::move(native);
  bury(&block);
}

void Registry::claim(Block& block, c10::StorageImpl& storage) {
  if (!block.counted) {
    block.counted = true;
    const auto bytes = static_cast<int64_t>(block.size);
    stats_.resident_bytes.add(bytes);
    if (block.stays.lasting()) {
      stats_.held_bytes.add(bytes);
    }
  }
  if (!block.owner || block.owner->_unsafe_get_target() != &storage) {
    // The block is new, or its DataPtr was moved to another storage.
    block.owner = compat::weak(storage);
  }
}

void Registry::place(Block& block, c10::StorageImpl& storage, void* data) {
  at::DataPtr& held = compat::data_ptr(storage);
  held.release_context();
  held = at::DataPtr(data, &block, &Registry::deleter, block.device);
}

void Registry::hide(Block& block, c10::StorageImpl& storage, const char* why) {
  place(block, storage, compat::nowhere());
  compat::forbid_access(storage, why);
  block.hidden = true;
}

void Registry::show(Block& block, c10::StorageImpl& storage) {
  place(block, storage, block.memory.get());
  compat::allow_access(storage);
  block.hidden = false;
}

Block* Registry::find(const void* address) const {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block* block) {
    return block->memory.get() == address;
  });
  return found == blocks_.end() ? nullptr : *found;
}

namespace {

// A value that no other thread has, as long as this one runs.
const void* this_thread() {
  static thread_local const char here = 0;
  return &here;
}

} // namespace

void Registry::stay(Block& block, Reason reason) {
  const bool used = block.stays.has(Reason::Operator);
  const bool lasting = block.stays.lasting();
  block.stays.add(reason);
  if (reason == Reason::Operator) {
    block.thread = used && block.thread != this_thread() ? nullptr : this_thread();
  }
  policy_.used(block);
  const auto bytes = static_cast<int64_t>(block.size);
  if (!used && block.stays.has(Reason::Operator)) {
    stats_.pinned.add(1, block.size);
    stats_.pinned_bytes.add(bytes, block.size);
  }
  if (block.counted && !lasting && block.stays.lasting()) {
    stats_.held_bytes.add(bytes);
  }
}

bool Registry::only_this_thread_uses(const Block& block) {
  return block.stays.none_but(Reason::Operator) && block.thread == this_thread();
}

void Registry::leave(Block& block, Reason reason) {
  const bool used = block.stays.has(Reason::Operator);
  const bool lasting = block.stays.lasting();
  if (!block.stays.remove(reason)) {
    return;
  }
  const auto bytes = static_cast<int64_t>(block.size);
  if (used && !block.stays.has(Reason::Operator)) {
    stats_.pinned.add(-1, block.size);
    stats_.pinned_bytes.add(-bytes, block.size);
  }
  if (block.state.is(State::Freed)) {
    if (!block.stays.referred() && (reason == Reason::Operator || reason == Reason::Lms)) {
      delete &block;
    }
    return;
  }
  if (block.counted && lasting && !block.stays.lasting()) {
    stats_.held_bytes.add(-bytes);
  }
  offer(block);
}

void Registry::offer(Block& block) {
  const bool here = block.state.is(State::Resident) || block.state.is(State::PagingIn);
  if (here && block.on_device() && block.owner && !block.stays.any()) {
    policy_.released(block);
  }
}

void Registry::deleter(void* context) {
  if (Lock::forked()) {
    return; // the memory belongs to the parent
  }
  if (Lock::held()) {
    Lock::later(&Registry::bury, context);
    return;
  }
  const Lock lock;
  bury(context);
}

void Registry::bury(void* context) {
  auto* const block = static_cast<Block*>(context);
  Registry& registry = block->registry;
  registry.policy_.freed(*block);
  registry.blocks_.erase(block);
  if (block->counted && block->stays.lasting()) {
    registry.stats_.held_bytes.add(-static_cast<int64_t>(block->size));
  }
  registry.listener_.died(block);
}

} // namespace torch::cuda::lms
