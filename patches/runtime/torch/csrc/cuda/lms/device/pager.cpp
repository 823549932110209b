#include <torch/csrc/cuda/lms/device/pager.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/block/slices.h>
#include <torch/csrc/cuda/lms/device/runtime.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <deque>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

namespace {

// The block's storage; null if it has none, or if that is being freed. Pauses the mutex: if only
// Python has the storage, this takes the GIL.
compat::StrongStorage owner_of(const Block& block) {
  if (!block.owner) {
    return compat::StrongStorage();
  }
  const compat::WeakStorage owner = *block.owner;
  const Lock::Pause pause;
  return owner.lock();
}

// The addresses that the native allocator has handed out.
std::vector<const void*> allocated(
    const compat::cca::SnapshotInfo& snapshot,
    c10::DeviceIndex device) {
  std::vector<const void*> found;
  for (const auto& segment : snapshot.segments) {
    if (segment.device == device) {
      size_t address = segment.address;
      for (const auto& range : segment.blocks) {
        if (range.allocated) {
          found.push_back(reinterpret_cast<const void*>(address));
        }
        address += range.size;
      }
    }
  }
  return found;
}

// A reason to stay for each of the blocks.
std::deque<Stay> stays_of(Registry& registry, const std::vector<Block*>& blocks) {
  std::deque<Stay> stays;
  for (Block* const block : blocks) {
    stays.emplace_back(registry, *block);
  }
  return stays;
}

} // namespace

std::atomic<int> Pager::staying_anywhere_{0};

Pager::Pager(
    c10::DeviceIndex device,
    const Settings& settings,
    compat::cca::CUDAAllocator* native,
    c10::Allocator* tier,
    const c10::Allocator* before,
    Attention& attention)
    : device(device),
      pools(device),
      registry(*this, *this, Native(native), policy, stats),
      mover(device, settings, Native(native), registry, stats, recorders),
      room(
          device,
          settings,
          Native(native),
          pools,
          registry,
          policy,
          mover,
          stats,
          recorders,
          attention),
      follower(device, settings, pools, registry, policy, mover, room, stats, recorders.own),
      native_(native),
      tier_(tier),
      before_(before) {}

Block* Pager::adopt(c10::StorageImpl& storage, size_t smallest) {
  Block* block = Registry::block_of(storage);
  if (!block) {
    c10::StorageImpl& whole = Slices::whole(storage);
    if (&whole != &storage) {
      return adopt_sliced(whole, storage, smallest);
    }
    resize_with_tier(storage);
    const at::DataPtr& data = compat::data_ptr(storage);
    const size_t bytes = compat::nbytes(storage);
    if (bytes < std::max(smallest, Registry::kLeast) || !registry.is_native(data) ||
        pools.owns(data.get())) {
      return nullptr;
    }
    block = registry.adopt(storage);
    mover.taken(block->memory.get(), block->size); // LMS has not seen its allocation
    const auto stays = staying_.find(block->memory.get());
    if (stays != staying_.end()) {
      stays->second.each([&](Reason reason) { registry.stay(*block, reason); });
      staying_.erase(stays);
      publish_staying();
    }
  }
  registry.claim(*block, storage);
  return block;
}

// A storage from before LMS has the native allocator. Resizing it would ask that for memory, which
// makes no room.
void Pager::resize_with_tier(c10::StorageImpl& storage) const {
  // Nothing is asked of the allocator: that of at::_efficientzerotensor() does not exist any more.
  if (before_ && storage.allocator() == before_) {
    storage.set_allocator(tier_);
  }
}

// Adopts a storage that was sliced. From now on it stays, because the slice has an address in it.
Block* Pager::adopt_sliced(c10::StorageImpl& storage, c10::StorageImpl& slice, size_t smallest) {
  Block* const block = adopt(storage, smallest);
  if (!block) {
    return nullptr;
  }
  const auto* const memory = static_cast<const char*>(block->memory.get());
  const auto* const data = static_cast<const char*>(compat::data_ptr(slice).get());
  if (memory != block->known || data < memory || data > memory + block->size) {
    const char* const why =
        "LMS: a storage has been moved after a slice of it (storage[begin:end]) was made. Make the "
        "slice while LMS is on, or pass the tensor to torch.cuda.lms.exclude() before.";
    compat::forbid_access(slice, why);
    TORCH_CHECK(false, why);
  }
  if (!block->stays.has(Reason::Address)) {
    registry.stay(*block, Reason::Address);
  }
  mover.wrote(*block); // not every write through the slice is seen
  return block;
}

bool Pager::disown(Block& block, at::DataPtr& held) {
  const Stay stay(registry, block);
  if (!block.on_device() || block.hidden || pools.capturing()) {
    return false;
  }
  mover.synchronize(); // whoever uses it from now on does not wait for transfers
  if (block.moved_home) {
    mover.share_with_all(block);
    if (!block.on_device()) {
      return false; // freed meanwhile
    }
  }
  void* const address = block.memory.get();
  const size_t size = block.size;
  const Residency lasting = block.stays.lasting_part();
  Registry::disown(block, held);
  mover.taken(address, size); // it was noted as free, and is not
  staying_.erase(address); // of who had it before
  if (lasting.any()) {
    staying_.emplace(address, lasting);
  }
  publish_staying();
  return true;
}

void Pager::keep(Block& block, Reason reason, c10::cuda::CUDAStream stream) {
  const Stay stay(registry, block);
  room.bring(block, stream);
  mover.finish(block); // what is not seen may run on any stream
  registry.stay(block, reason);
  block.known = block.memory.get();
  mover.wrote(block);
}

void Pager::record_stream(Block& block, c10::cuda::CUDAStream stream) {
  if (stream.device_index() == device) {
    mover.record_stream(block, stream);
    return;
  }
  // Page-outs are not ordered with streams of other devices, so the block does not leave any more.
  block.abroad.insert(stream.device_index());
  const Stay stay(registry, block);
  keep(block, Reason::Address, c10::cuda::getCurrentCUDAStream(device));
  Native(native_).record_stream(block.memory, stream);
}

void Pager::let_go(Block& block, std::initializer_list<Reason> reasons) {
  const Stay stay(registry, block);
  bool any = false;
  for (const Reason reason : reasons) {
    any = any || block.stays.has(reason);
    registry.leave(block, reason);
  }
  if (!any || block.stays.lasting()) {
    return;
  }
  // Others can be recorded during a pause.
  const std::set<c10::DeviceIndex> abroad = std::exchange(block.abroad, {});
  try {
    for (const c10::DeviceIndex other : abroad) {
      Pager* const pager = Runtime::get().find(other);
      TORCH_CHECK(
          !pager || !pager->pools.capturing(),
          "LMS: a stream of cuda:",
          static_cast<int>(other),
          ", which captures a CUDA graph, was recorded for this tensor. Release it after that.");
    }
    if (pools.capturing()) {
      mover.collective(block); // the host waits before the block leaves
    } else {
      mover.synchronize();
    }
    for (const c10::DeviceIndex other : abroad) {
      Mover::synchronize(other);
    }
  } catch (...) {
    block.abroad.insert(abroad.begin(), abroad.end());
    if (!block.state.is(State::Freed)) {
      registry.stay(block, Reason::Address); // its users may not have ended: until release()
    }
    throw;
  }
}

void Pager::touch(Block& block, c10::cuda::CUDAStream stream) {
  const Stay stay(registry, block);
  room.bring(block, stream);
  mover.finish(block);
  mover.wrote(block);
}

void Pager::fail(Block& block, const std::string& message) {
  if (block.owner) {
    auto storage = block.owner->lock();
    if (storage && Registry::block_of(*storage) == &block) {
      compat::forbid_access(*storage, message);
      block.hidden = true;
    }
    Lock::drop_later(std::move(storage));
  }
}

void Pager::restore() {
  const c10::cuda::CUDAGuard guard(device);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  // Every block gets a reason to stay before the first page-in, so that a page-in cannot page out
  // another block.
  const std::vector<Block*> blocks = registry.blocks();
  const std::deque<Stay> stays = stays_of(registry, blocks);
  for (Block* const block : blocks) {
    if (block->state.is(State::Freed)) {
      continue; // freed during a pause
    }
    compat::StrongStorage storage;
    if (block->state.is(State::PagedOut) || block->hidden) {
      storage = owner_of(*block);
      if (!storage || block->state.is(State::Freed)) {
        Lock::drop_later(std::move(storage));
        continue; // the storage is being freed, so nobody can use it any more
      }
    }
    try {
      room.bring(*block, stream);
    } catch (...) {
      Lock::drop_later(std::move(storage));
      throw;
    }
    Lock::drop_later(std::move(storage));
  }
  mover.synchronize();
  for (Block* const block : blocks) {
    if (block->state.is(State::Freed)) {
      continue;
    }
    mover.wrote(*block); // writes are not seen any more
    for (EventRef* const event : {&block->left, &block->arrived}) {
      if (block->state.is(State::Resident) && *event && (*event)->done()) {
        event->reset(); // otherwise its memory would wait for it when it is freed
      }
    }
    if (block->moved_home) { // no more uses are seen either
      compat::StrongStorage storage = owner_of(*block);
      if (storage && block->on_device()) {
        mover.share_with_all(*block);
      }
      Lock::drop_later(std::move(storage));
    }
  }
  if (!pools.capturing()) {
    mover.limbo().wait();
  }
}

void Pager::update_access() {
  const std::vector<Block*> blocks = registry.blocks();
  const std::deque<Stay> stays = stays_of(registry, blocks);
  for (Block* const block : blocks) {
    if (!block->state.is(State::Freed) && block->hidden) {
      compat::StrongStorage storage = owner_of(*block);
      if (storage && block->hidden) {
        compat::update_access(*storage);
      }
      Lock::drop_later(std::move(storage));
    }
  }
}

void Pager::bring_all() {
  if (!pools.capturing()) {
    try {
      restore();
      return;
    } catch (const c10::Error& error) {
      mover.trouble(error.what_without_backtrace());
    }
  }
  mover.supply().drop_clean_copies(SIZE_MAX); // writes to resident blocks are not seen
}

void Pager::enabled() {
  mover.synchronize();
  // Memory that pools allocated while LMS was off belongs to them, for example to a CUDA graph.
  std::unordered_set<const void*> gone; // of what stays: what has been freed
  for (const auto& [memory, why] : staying_) {
    gone.insert(memory);
  }
  const auto snapshot = native_.snapshot(); // pauses the mutex
  pools.learn(snapshot);
  for (const void* const memory : allocated(snapshot, device)) {
    gone.erase(memory);
  }
  for (const void* const memory : gone) {
    staying_.erase(memory);
  }
  publish_staying();
}

void Pager::captured_unseen() {
  for (const void* const memory : allocated(native_.snapshot(), device)) {
    staying_[memory].add(Reason::Graph);
  }
  registry.each([this](Block& block) {
    if (block.on_device()) {
      staying_.erase(block.memory.get());
      if (!block.stays.has(Reason::Graph)) {
        registry.stay(block, Reason::Graph);
        mover.wrote(block);
      }
    }
  });
  publish_staying();
}

void Pager::let_go(const void* memory, std::initializer_list<Reason> reasons) {
  const auto stays = staying_.find(memory);
  if (stays == staying_.end()) {
    return;
  }
  for (const Reason reason : reasons) {
    stays->second.remove(reason);
  }
  if (!stays->second.any()) {
    staying_.erase(stays);
    publish_staying();
  }
}

void Pager::publish_staying() {
  if (published_ == staying_.empty()) {
    published_ = !published_;
    staying_anywhere_ += published_ ? 1 : -1;
  }
}

void Pager::start_recording() {
  const c10::cuda::CUDAGuard guard(device);
  recorders.users.start();
}

void Pager::stop_recording() {
  const c10::cuda::CUDAGuard guard(device);
  // What nothing has used is there, too, and was all the time.
  const size_t used = recorders.users.events().size();
  registry.each([&](Block& block) { recorders.users.knows(block.number, block.size); });
  // First, so that what is waited for with the mutex held has happened by then.
  recorded = recorders.users.take();
  mover.synchronize();
  recorded.settle();
  std::rotate(
      recorded.events.begin(),
      recorded.events.begin() + static_cast<std::ptrdiff_t>(used),
      recorded.events.end());
}

void Pager::uses(
    Block& block,
    bool write,
    c10::cuda::CUDAStream stream,
    uint64_t unit,
    const char* name) {
  if (unit != 0) {
    if (recorders.users.begins(unit) && !pools.capturing()) {
      const c10::cuda::CUDAGuard guard(device);
      recorders.users.mark(stream.stream());
    }
    recorders.users.in_operator(unit, name);
    follower.in_operator(unit, name, stream);
  }
  if (block.state.is(State::Freed)) {
    return; // during a pause
  }
  recorders.users.used(block.number, block.size, write);
  follower.used(block, write);
}

void Pager::step(uint32_t optimizer) {
  if (recorders.users.timed() && !pools.capturing()) {
    const c10::cuda::CUDAGuard guard(device);
    recorders.users.mark_end(c10::cuda::getCurrentCUDAStream(device).stream());
  }
  recorders.users.step(optimizer);
  follower.step();
}

void Pager::born(Block& block) {
  if (!staying_.empty()) {
    handed_out(block.memory.get()); // it was given back without LMS
  }
  recorders.users.allocated(block.number, block.size);
  follower.allocated(block);
}

void Pager::died(Block* block) noexcept {
  recorders.users.freed(block->number);
  follower.freed(*block);
  if (!block->on_device()) {
    stats.paged_out_bytes.add(-static_cast<int64_t>(block->size));
  } else if (block->counted) {
    stats.resident_bytes.add(-static_cast<int64_t>(block->size));
  }
  bool captured = true;
  try {
    captured = pools.capturing();
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
  }
  mover.discard(*block, captured);
  block->state.to(State::Freed);
  if (block->owner) {
    // The storage may still exist, with other memory (resize_, set_data_ptr).
    auto storage = block->owner->lock();
    Block* const now = storage ? Registry::block_of(*storage) : nullptr;
    // If it belongs to another block now, the state of that block decides about access.
    if (storage && (now == nullptr || now == block)) {
      compat::allow_access(*storage);
    }
    Lock::drop_later(std::move(storage));
    block->owner.reset();
  }
  if (!block->stays.referred()) {
    delete block; // otherwise Registry::leave() deletes it
  }
}

void Pager::reset_peak_stats() {
  stats.reset_peak();
  mover.supply().reset_peak_stats();
}

void Pager::reset_accumulated_stats() {
  stats.reset_accumulated();
  mover.supply().reset_accumulated_stats();
}

} // namespace torch::cuda::lms
