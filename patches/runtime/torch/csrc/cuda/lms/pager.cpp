#include <torch/csrc/cuda/lms/pager.h>

#include <torch/csrc/cuda/lms/guard.h>
#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/log.h>
#include <torch/csrc/cuda/lms/watch.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace torch::cuda::lms {

namespace {

constexpr const char* kPagedOut =
    "Large Model Support (LMS) has paged this storage out to host memory, and it was used where "
    "LMS could not see it. Use it through a PyTorch operator, take its address with "
    "tensor.data_ptr() in Python, or hold it on the GPU with torch.cuda.lms.resident(tensor).";

std::string mib(int64_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

} // namespace

Pager::Pager(c10::DeviceIndex device, const Settings& settings, cca::CUDAAllocator* native)
    : device_(device),
      settings_(settings),
      native_(native),
      native_deleter_(native->raw_deleter()),
      transfer_(),
      arena_(device, settings) {}

bool Pager::capturing() const {
  if (!pooling_) {
    return false; // a capture allocates from a pool
  }
  const c10::cuda::CUDAGuard guard(device_);
  if (compat::is_capturing(c10::cuda::getCurrentCUDAStream(device_))) {
    return true;
  }
  // Another thread's capture: an event recorded on its stream would join it.
  return std::any_of(timelines_.begin(), timelines_.end(), [&](const auto& entry) {
    return compat::is_capturing(entry.first);
  });
}

// ---- storages ----

Block* Pager::block_of(c10::StorageImpl& storage) {
  const at::DataPtr& data = compat::data_ptr(storage);
  return data.get_deleter() == &Pager::deleter ? static_cast<Block*>(data.get_context()) : nullptr;
}

Block* Pager::find(const void* address) const {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block* block) {
    return block->memory.get() == address;
  });
  return found == blocks_.end() ? nullptr : *found;
}

Block* Pager::adopt(c10::StorageImpl& storage, size_t smallest) {
  Block* block = block_of(storage);
  if (!block) {
    at::DataPtr& data = compat::data_ptr(storage);
    void* const address = data.get();
    const size_t bytes = compat::nbytes(storage);
    if (bytes < smallest || bytes == 0 || address == nullptr || !data.device().is_cuda() ||
        data.get_deleter() != native_deleter_ || data.get_context() != address ||
        in_pool(address)) {
      return nullptr;
    }
    const c10::Device device = data.device();
    // Another thread's operator that saw the storage unmanaged may read the
    // address now: it must not be gone for a moment.
    at::DataPtr native(address, data.release_context(), native_deleter_, device);
    block = new Block(*this, std::move(native), bytes);
    data = at::DataPtr(address, block, &Pager::deleter, device);
    blocks_.insert(block);
    ++stats_.adopted;
  }
  if (!block->counted) {
    block->counted = true;
    stats_.resident_bytes.add(static_cast<int64_t>(block->size));
  }
  if (!block->owner || block->owner->_unsafe_get_target() != &storage) {
    // New, or the DataPtr has moved to another storage.
    block->owner = compat::weak(storage);
  }
  return block;
}

void Pager::place(Block& block, c10::StorageImpl& storage, void* data) {
  at::DataPtr& held = compat::data_ptr(storage);
  held.release_context();
  held = at::DataPtr(data, &block, &Pager::deleter, block.device);
}

void Pager::deleter(void* context) {
  auto* const block = static_cast<Block*>(context);
  if (Lock::held()) {
    Lock::free_later(block);
    return;
  }
  const Lock lock;
  free(block);
}

void Pager::free(Block* block) noexcept {
  Pager& pager = block->pager;
  pager.policy_.freed(*block);
  pager.blocks_.erase(block);
  if (block->held()) {
    pager.stats_.held_bytes.add(-static_cast<int64_t>(block->size));
  }
  if (block->state.is(State::PagedOut)) {
    pager.stats_.paged_out_bytes.add(-static_cast<int64_t>(block->size));
  } else {
    if (block->counted) {
      pager.stats_.resident_bytes.add(-static_cast<int64_t>(block->size));
    }
    try {
      const c10::cuda::CUDAGuard guard(pager.device_);
      if (block->moved_home && !pager.capturing()) {
        // The user relies on the order of the stream that was current when the
        // storage was made, which need not be this one.
        pager.wait_for_uses(*block);
      }
      pager.free_memory(*block);
    } catch (const c10::Error&) {
      // A destructor runs this, and a copy may be in flight: the host waits.
      (void)cudaDeviceSynchronize();
      (void)cudaGetLastError();
      block->memory.clear();
    }
  }
  pager.drop_host(*block);
  block->state.to(State::Freed);
  if (block->owner) {
    // The storage may live on with other memory (resize_, set_data_ptr).
    auto storage = block->owner->lock();
    if (storage && block_of(*storage) != nullptr && block_of(*storage) != block) {
      // Another block's storage now: that block's state decides.
    } else if (storage) {
      compat::allow_access(*storage);
    }
    Lock::drop_later(std::move(storage));
    block->owner.reset();
  }
  if (block->pins > 0) {
    block->dead = true; // an operator still names it: unpin() deletes it
  } else {
    delete block;
  }
}

// Gives device memory back to the native allocator, which frees in the order of
// the home stream.
void Pager::free_memory(Block& block) {
  if (block.copied) {
    if (block.home) {
      const cudaStream_t home = block.home->stream();
      if (std::find(block.ordered.begin(), block.ordered.end(), home) == block.ordered.end()) {
        block.copied->block(home);
      }
    } else {
      block.copied->synchronize();
    }
  }
  block.memory.clear();
}

// The memory goes back behind its uses on all streams.
void Pager::wait_for_uses(Block& block) {
  for (const Use& use : block.uses) {
    const EventRef done = use.recorded ? use.timeline->mark() : use.timeline->after(use.position);
    if (block.home) {
      done->block(block.home->stream());
    } else {
      done->synchronize();
    }
  }
}

void Pager::drop_host(Block& block) {
  if (block.host) {
    arena_.give(block.host, block.copied);
    block.host = {};
  }
}

// Host copies of storages that are on the device save a copy and are not needed
// otherwise. Drops so many bytes of them; false when there are none.
bool Pager::drop_clean_copies(size_t bytes) {
  size_t dropped = 0;
  for (Block* const block : blocks_) {
    if (block->host && block->state.is(State::Resident)) {
      dropped += block->host.size();
      wrote(*block);
      if (dropped >= bytes) {
        break;
      }
    }
  }
  return dropped > 0;
}

HostBuffer Pager::take_host(size_t bytes) {
  try {
    return arena_.take(bytes);
  } catch (const c10::Error&) {
    if (!drop_clean_copies(bytes)) {
      throw;
    }
    return arena_.take(bytes);
  }
}

// ---- moving ----

Pager::Outcome Pager::page_out(Block& block) {
  policy_.remove(block);
  auto storage = block.owner ? compat::lock(*block.owner) : compat::StrongStorage();
  if (!storage) {
    return Outcome::Gone; // dying: its deleter waits for the mutex
  }
  Outcome outcome = Outcome::Moved;
  if (block_of(*storage) != &block) {
    block.owner.reset(); // its DataPtr went elsewhere; the guard finds it there
    outcome = Outcome::Gone;
  } else if (!start_page_out(block, *storage)) {
    idle(block);
    outcome = Outcome::Failed;
  }
  Lock::drop_later(std::move(storage));
  return outcome;
}

bool Pager::start_page_out(Block& block, c10::StorageImpl& storage) {
  const c10::cuda::CUDAGuard guard(device_);
  const bool copy = block.dirty || !block.host;
  try {
    if (copy && !block.host) {
      block.host = take_host(block.size);
    }
    if (!copy && settings_.verify_clean) {
      verify(block);
    }
  } catch (const c10::Error& error) {
    trouble_ = error.what_without_backtrace();
    return false;
  }
  block.state.to(State::PagingOut);
  try {
    if (block.unfinished) {
      finish_collectives();
    }
    if (copy) {
      for (const Use& use : block.uses) {
        (use.recorded ? use.timeline->mark() : use.timeline->after(use.position))
            ->block(transfer_.out());
      }
      if (block.copied) {
        block.copied->block(transfer_.out());
      }
      block.copied = transfer_.page_out(block.host, block.memory.get(), block.size);
      block.ordered.clear();
      block.dirty = false;
      stats_.page_out_bytes += static_cast<int64_t>(block.size);
    } else {
      // Nothing to copy; the memory still must not be reused under its readers.
      wait_for_uses(block);
      ++stats_.clean_count;
    }
    free_memory(block);
  } catch (const c10::Error& error) {
    trouble_ = error.what_without_backtrace();
    (void)cudaGetLastError();
    // Nothing was given up yet: the device copy is the true one. A copy that
    // was issued may still write the host buffer.
    (void)cudaStreamSynchronize(transfer_.out());
    (void)cudaGetLastError();
    block.dirty = true;
    block.state.to(State::Resident);
    return false;
  }
  place(block, storage, nullptr);
  compat::forbid_access(storage, kPagedOut);
  if (block.compared) {
    compat::allow_reading(storage);
  }
  block.state.to(State::PagedOut);
  // What the copy waited for is behind `copied` now. Streams that were told by
  // record_stream() stay: the user does not say it again.
  block.uses.erase(
      std::remove_if(
          block.uses.begin(), block.uses.end(), [](const Use& use) { return !use.recorded; }),
      block.uses.end());
  pressure_ = true;
  debug_log(
      "[lms] page-out %zu bytes (%s) for %s\n",
      block.size,
      copy ? "copied" : "clean",
      Guard::current_operator() ? Guard::current_operator() : "-");
  ++stats_.page_out_count;
  stats_.resident_bytes.add(-static_cast<int64_t>(block.size));
  stats_.paged_out_bytes.add(static_cast<int64_t>(block.size));
  return true;
}

void Pager::page_in(Block& block) {
  auto storage = block.owner ? block.owner->lock() : c10::intrusive_ptr<c10::StorageImpl>();
  TORCH_CHECK(
      storage && block_of(*storage) == &block,
      "LMS: the memory of a paged-out storage was given to another one (set_data_ptr)");
  const c10::cuda::CUDAGuard guard(device_);
  if (!block.home) {
    block.home = c10::cuda::getCurrentCUDAStream(device_);
    block.moved_home = true;
  }
  const c10::cuda::CUDAStreamGuard stream_guard(*block.home);
  block.state.to(State::PagingIn);
  at::DataPtr memory;
  try {
    memory = obtain(block.size);
    // The memory's last user may still be running on the home stream, which has
    // also waited for the page-out when it got the memory back.
    timeline(*block.home).mark()->block(transfer_.in());
    block.copied = transfer_.page_in(memory.get(), block.host, block.size);
  } catch (...) {
    if (memory) {
      // The copy may have been issued, and the memory is about to be freed.
      (void)cudaStreamSynchronize(transfer_.in());
      (void)cudaGetLastError();
    }
    block.state.to(State::PagedOut);
    Lock::drop_later(std::move(storage));
    throw;
  }
  for (const Use& use : block.uses) {
    native_->recordStream(memory, use.timeline->stream());
  }
  block.memory = std::move(memory);
  block.ordered.clear();
  place(block, *storage, block.memory.get());
  compat::allow_access(*storage);
  debug_log(
      "[lms] page-in %zu bytes for %s\n",
      block.size,
      Guard::current_operator() ? Guard::current_operator() : "-");
  ++stats_.page_in_count;
  stats_.page_in_bytes += static_cast<int64_t>(block.size);
  stats_.resident_bytes.add(static_cast<int64_t>(block.size));
  stats_.paged_out_bytes.add(-static_cast<int64_t>(block.size));
  Lock::drop_later(std::move(storage));
}

void Pager::order(Block& block, cudaStream_t stream, bool captured) {
  if (block.copied &&
      std::find(block.ordered.begin(), block.ordered.end(), stream) == block.ordered.end()) {
    // The handle of the default stream means the current device's.
    const c10::cuda::CUDAGuard guard(device_);
    if (captured) {
      // A graph must not depend on work outside of it.
      const compat::RelaxedCapture relaxed;
      block.copied->synchronize();
    } else {
      block.copied->block(stream);
    }
    block.ordered.push_back(stream);
  }
  if (block.state.is(State::PagingIn)) {
    block.state.to(State::Resident);
  }
}

void Pager::verify(const Block& block) {
  std::string device(block.size, '\0');
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  C10_CUDA_CHECK(cudaMemcpy(&device[0], block.memory.get(), block.size, cudaMemcpyDeviceToHost));
  bool same = true;
  block.host.each(block.size, [&](const char* part, size_t offset, size_t size) {
    same = same && std::memcmp(device.data() + offset, part, size) == 0;
  });
  if (!same) {
    ++stats_.clean_violations;
  }
}

// ---- use ----

void Pager::pin(Block& block) {
  if (block.pins++ == 0) {
    policy_.used(block);
    stats_.pinned.add(1, block.size);
    stats_.pinned_bytes.add(static_cast<int64_t>(block.size), block.size);
  }
}

void Pager::bring(Block& block, c10::cuda::CUDAStream stream) {
  const bool captured = capturing();
  if (block.state.is(State::PagedOut)) {
    TORCH_CHECK(
        !captured,
        "LMS: a storage of ",
        block.size,
        " bytes is in host memory while a CUDA graph is captured, where nothing can be paged in. "
        "Hold it with torch.cuda.lms.resident(...) before the capture, or capture with LMS off.");
    page_in(block);
  }
  order(block, stream.stream(), captured);
  if (block.failed && block.owner) {
    permit(block);
  }
  if (captured && !block.exported) {
    // The graph replays this address.
    const compat::RelaxedCapture relaxed;
    keep(block);
  }
}

void Pager::keep(Block& block) {
  if (block.exported) {
    return;
  }
  if (!block.held()) {
    stats_.held_bytes.add(static_cast<int64_t>(block.size));
  }
  policy_.used(block);
  block.exported = true;
  wrote(block); // whoever has the address may write where no operator shows it
}

void Pager::compared(Block& block, c10::StorageImpl& storage) {
  block.compared = true;
  if (block.state.is(State::PagedOut) && !block.failed) {
    compat::allow_reading(storage);
  }
}

void Pager::wrote(Block& block) {
  block.dirty = true;
  drop_host(block);
}

Timeline& Pager::timeline(c10::cuda::CUDAStream stream) {
  auto& slot = timelines_[stream.stream()];
  if (!slot) {
    slot = std::make_unique<Timeline>(stream, transfer_.events());
  }
  return *slot;
}

void Pager::used(Block& block, Timeline& timeline, uint64_t position) {
  for (Use& use : block.uses) {
    if (use.timeline == &timeline) {
      use.position = position;
      return;
    }
  }
  block.uses.push_back({&timeline, position, false});
}

void Pager::record_stream(Block& block, c10::cuda::CUDAStream stream) {
  if (block.memory) {
    native_->recordStream(block.memory, stream);
  }
  Timeline& line = timeline(stream);
  for (Use& use : block.uses) {
    if (use.timeline == &line) {
      use.recorded = true;
      return;
    }
  }
  block.uses.push_back({&line, 0, true});
}

void Pager::unpin(Block& block) {
  if (--block.pins > 0) {
    return;
  }
  stats_.pinned.add(-1, block.size);
  stats_.pinned_bytes.add(-static_cast<int64_t>(block.size), block.size);
  if (block.dead) {
    delete &block;
    return;
  }
  idle(block);
}

// The block may be paged out from now on, if nothing else keeps it.
void Pager::idle(Block& block) {
  const bool on_device = block.state.is(State::Resident) || block.state.is(State::PagingIn);
  if (block.pins == 0 && !block.held() && !block.collective && on_device && block.owner) {
    policy_.released(block);
  }
}

void Pager::hold(Block& block, c10::cuda::CUDAStream stream) {
  pin(block);
  try {
    bring(block, stream);
  } catch (...) {
    unpin(block);
    throw;
  }
  if (!block.held()) {
    stats_.held_bytes.add(static_cast<int64_t>(block.size));
  }
  ++block.holds;
  wrote(block); // whoever holds it may write where no operator shows it
  unpin(block);
}

void Pager::release(Block& block) {
  if (block.holds == 0) {
    return;
  }
  --block.holds;
  if (!block.held()) {
    stats_.held_bytes.add(-static_cast<int64_t>(block.size));
    // Work that no operator showed may be queued on any stream.
    synchronize();
    idle(block);
  }
}

void Pager::export_address(Block& block, c10::cuda::CUDAStream stream) {
  if (block.exported) {
    return;
  }
  pin(block);
  try {
    bring(block, stream);
    keep(block);
  } catch (...) {
    unpin(block);
    throw;
  }
  unpin(block);
}

void Pager::unexport(Block& block) {
  if (!block.exported) {
    return;
  }
  block.exported = false;
  if (!block.held()) {
    stats_.held_bytes.add(-static_cast<int64_t>(block.size));
    synchronize();
    idle(block);
  }
}

void Pager::fail(Block& block, const std::string& message) {
  if (block.owner) {
    auto storage = block.owner->lock();
    if (storage) {
      compat::forbid_access(*storage, message);
      block.failed = true;
    }
    Lock::drop_later(std::move(storage));
  }
}

void Pager::permit(Block& block) {
  auto storage = block.owner->lock();
  if (storage) {
    compat::allow_access(*storage);
  }
  block.failed = false;
  Lock::drop_later(std::move(storage));
}

// ---- everything ----

size_t Pager::reclaim(size_t wanted) {
  Watch::begin();
  if (capturing() || !Watch::settled()) {
    return 0;
  }
  size_t bytes = 0;
  while (bytes < wanted) {
    Block* const victim = policy_.victim(wanted - bytes);
    if (!victim) {
      break;
    }
    const size_t size = victim->size;
    const Outcome outcome = page_out(*victim);
    if (outcome == Outcome::Failed) {
      break;
    }
    if (outcome == Outcome::Moved) {
      bytes += size;
    }
  }
  return bytes;
}

void Pager::restore() {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_);
  // All are pinned first: to bring one must not page out another.
  const std::vector<Block*> blocks(blocks_.begin(), blocks_.end());
  for (Block* const block : blocks) {
    pin(*block);
  }
  const auto unpin_all = [&] {
    for (Block* const block : blocks) {
      unpin(*block);
    }
  };
  try {
    for (Block* const block : blocks) {
      if (block->state.is(State::PagedOut)) {
        auto storage = block->owner ? block->owner->lock() : c10::intrusive_ptr<c10::StorageImpl>();
        const bool alive = static_cast<bool>(storage);
        Lock::drop_later(std::move(storage));
        if (!alive) {
          continue; // dying: nobody can use it any more
        }
      }
      bring(*block, stream);
    }
    synchronize();
  } catch (...) {
    unpin_all();
    throw;
  }
  for (Block* const block : blocks) {
    wrote(*block); // writes are not seen any more
  }
  unpin_all();
}

void Pager::bring_all() {
  if (!capturing()) {
    try {
      restore();
      return;
    } catch (const c10::Error& error) {
      trouble_ = error.what_without_backtrace();
    }
  }
  drop_clean_copies(SIZE_MAX); // writes to what is here are not seen
}

// Their streams are not known, nor who waits for them.
void Pager::finish_collectives() {
  synchronize();
  for (Block* const block : blocks_) {
    block->unfinished = false;
  }
}

void Pager::enabled() {
  synchronize();
  // What pools allocated while nobody looked, perhaps for a graph, is theirs.
  pool_segments_.clear();
  for (const auto& segment : compat::snapshot(*native_).segments) {
    if (segment.device == device_ && segment.owner_private_pool_id != compat::MempoolId{0, 0}) {
      pool_segments_.emplace(segment.address, segment.address + segment.total_size);
      pooled_ = true;
    }
  }
}

bool Pager::in_pool(void* address) const {
  if (in_pool_.count(address)) {
    return true;
  }
  const auto after = pool_segments_.upper_bound(reinterpret_cast<size_t>(address));
  return after != pool_segments_.begin() &&
         reinterpret_cast<size_t>(address) < std::prev(after)->second;
}

void Pager::synchronize() {
  const c10::cuda::CUDAGuard guard(device_);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}

void Pager::reset_peak_stats() {
  stats_.reset_peak();
  arena_.reset_peak();
}

void Pager::reset_accumulated_stats() {
  stats_.reset_accumulated();
  arena_.reset_accumulated();
}

size_t Pager::reserve_host(size_t bytes) {
  const c10::cuda::CUDAGuard guard(device_);
  return arena_.reserve(bytes);
}

size_t Pager::trim_host() {
  const c10::cuda::CUDAGuard guard(device_);
  return arena_.trim();
}

void Pager::went_on(size_t bytes, const char* op) {
  {
    const Lock lock;
    ++stats_.out_of_memory_caught;
  }
  TORCH_WARN_ONCE(
      "Large Model Support (LMS): ",
      op ? op : "an operator",
      " went on without ",
      mib(static_cast<int64_t>(bytes)),
      " that it asked for, and may have used another algorithm, whose results can differ in their"
      " last bits. What is free lies in pieces, or the limit is too low for it: try the allocator's"
      " setting expandable_segments:True, or a higher limit. This is said once;"
      " torch.cuda.lms.stats()[\"out_of_memory_caught\"] counts.");
}

std::string Pager::account(size_t bytes, const char* op) const {
  size_t limit = settings_.limit ? settings_.limit.load() : automatic_limit_ - headroom_.bytes();
  std::ostringstream text;
  text << "Large Model Support (LMS) could not make room: ";
  if (op && *op) {
    text << op << " asked for ";
  } else {
    text << "the request is ";
  }
  text << mib(static_cast<int64_t>(bytes)) << "; limit " << mib(static_cast<int64_t>(limit))
       << (settings_.limit ? "" : " (automatic)") << ", resident "
       << mib(stats_.resident_bytes.current) << ", of these pinned by operators "
       << mib(stats_.pinned_bytes.stats[0].current) << " and held "
       << mib(stats_.held_bytes.current) << ", paged out " << mib(stats_.paged_out_bytes.current)
       << ", host memory " << mib(arena_.pinned().current) << '.';
  if (!Watch::settled()) {
    text << " Nothing is paged out until the operators have ended that began before LMS had to"
            " look at them.";
  }
  if (!trouble_.empty()) {
    text << " The last page-out failed: " << trouble_;
  }
  return text.str();
}

} // namespace torch::cuda::lms
