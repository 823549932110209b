#include <torch/csrc/cuda/lms/pager.h>

#include <torch/csrc/cuda/lms/guard.h>
#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/log.h>

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace torch::cuda::lms {

namespace {

constexpr const char* kPagedOut =
    "Large Model Support (LMS) has paged this storage out to host memory, and it was used where "
    "LMS could not see it. Use it through a PyTorch operator, take its address with "
    "tensor.data_ptr() in Python, or hold it on the GPU with torch.cuda.lms.resident(tensor).";

// The native allocator's rounding, which its statistics count.
size_t rounded(size_t bytes) {
  return (bytes + 511) / 512 * 512;
}

} // namespace

Pager::Pager(c10::DeviceIndex device, const Settings& settings, cca::CUDAAllocator* native)
    : device_(device),
      settings_(settings),
      native_(native),
      native_deleter_(native->raw_deleter()),
      transfer_() {}

// ---- the allocator tier ----

at::DataPtr Pager::allocate(size_t bytes) {
  Guard::check_failed();
  if (pooling_) {
    // A graph replays these addresses, or the pool's owner chose the memory.
    at::DataPtr memory = native_->allocate(bytes);
    const Lock lock;
    in_pool_.insert(memory.get());
    pooled_ = true;
    return memory;
  }
  Source source = Source::FreeList;
  const bool managed = bytes >= settings_.size;
  if (managed || bytes > StatArray::kSmallSize) {
    const Lock lock;
    const int victims = make_room(bytes);
    source = victims == 0   ? Source::FreeList
             : victims == 1 ? Source::ReclaimOne
                            : Source::ReclaimFragments;
  }
  for (int attempt = 0;; ++attempt) {
    try {
      at::DataPtr memory = native_->allocate(bytes);
      if (!managed && !pooled_) {
        return memory;
      }
      const Lock lock;
      in_pool_.erase(memory.get()); // the pool is gone if its address comes back
      if (!managed) {
        return memory;
      }
      served(source);
      return own(std::move(memory), bytes);
    } catch (const c10::OutOfMemoryError& error) {
      const Lock lock;
      retry(error, bytes, attempt, source);
    }
  }
}

void* Pager::allocate_raw(size_t bytes, cudaStream_t stream) {
  Source source = Source::FreeList;
  for (int attempt = 0;; ++attempt) {
    try {
      return native_->raw_alloc_with_stream(bytes, stream);
    } catch (const c10::OutOfMemoryError& error) {
      const Lock lock;
      retry(error, bytes, attempt, source);
    }
  }
}

void Pager::pool_begins(compat::MempoolId pool) {
  ++active_pools_[pool];
  pooling_ = true;
}

void Pager::pool_ends(compat::MempoolId pool) {
  const auto found = active_pools_.find(pool);
  if (found != active_pools_.end() && --found->second == 0) {
    active_pools_.erase(found);
  }
  pooling_ = !active_pools_.empty();
}

void Pager::pool_released(compat::MempoolId pool) {
  active_pools_.erase(pool);
  pooling_ = !active_pools_.empty();
}

at::DataPtr Pager::own(at::DataPtr memory, size_t bytes) {
  void* const data = memory.get();
  if (memory.get_deleter() != native_deleter_ || data == nullptr) {
    return memory;
  }
  const c10::Device device = memory.device();
  auto* const block = new Block(*this, std::move(memory), bytes);
  block->home = c10::cuda::getCurrentCUDAStream(device_);
  blocks_.insert(block);
  policy_.allocated(*block);
  return at::DataPtr(data, block, &Pager::deleter, device);
}

// With the mutex held throughout: for page-ins.
at::DataPtr Pager::obtain(size_t bytes) {
  make_room(bytes);
  Source source = Source::FreeList;
  for (int attempt = 0;; ++attempt) {
    try {
      return native_->allocate(bytes);
    } catch (const c10::OutOfMemoryError& error) {
      retry(error, bytes, attempt, source);
    }
  }
}

size_t Pager::allocated_bytes() {
  const auto stats = native_->getDeviceStats(device_);
  device_allocs_ = stats.num_device_alloc;
  return static_cast<size_t>(stats.allocated_bytes[0].current);
}

size_t Pager::limit() {
  if (const size_t limit = settings_.limit) {
    return limit;
  }
  if (automatic_limit_ == 0) {
    const c10::cuda::CUDAGuard guard(device_);
    size_t free = 0;
    size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const auto stats = native_->getDeviceStats(device_);
    const double reachable = static_cast<double>(free) + stats.reserved_bytes[0].current;
    const double fraction = native_->getMemoryFraction(device_) * static_cast<double>(total);
    // 95 %, as the first LMS: the rest is for fragmentation.
    automatic_limit_ = static_cast<size_t>(0.95 * std::min(reachable, fraction));
  }
  return automatic_limit_;
}

// Pages out until the request fits under the limit, or nothing idle is left;
// returns how many blocks were paged out. The limit is soft.
int Pager::make_room(size_t bytes) {
  if (capturing()) {
    return 0;
  }
  if (settings_.stress) {
    reclaim();
  }
  const size_t request = rounded(bytes);
  const size_t limit = this->limit();
  int count = 0;
  for (;;) {
    // The user's limit is for the storages that LMS manages. The automatic one
    // is what the device has, for everything.
    const size_t in_use =
        settings_.limit ? static_cast<size_t>(stats_.resident_bytes.current) : allocated_bytes();
    if (in_use + request <= limit) {
      return count;
    }
    Block* const victim = policy_.victim(in_use + request - limit);
    if (!victim) {
      return count;
    }
    const Outcome outcome = page_out(*victim);
    if (outcome == Outcome::Failed) {
      return count; // the next one would fail, too
    }
    count += outcome == Outcome::Moved;
  }
}

// After the native allocator failed: pages out more with each attempt. False
// when there is nothing left to try.
bool Pager::reclaim_for(size_t bytes, int attempt, Source& source) {
  ++stats_.out_of_memory_retries;
  if (capturing()) {
    return false;
  }
  if (attempt == 0 && settings_.limit == 0) {
    // The limit let this request through and the device did not: fragments, or
    // somebody else's memory. Stay further below it from now on, because the
    // native allocator's error path stops the device.
    const size_t limit = this->limit();
    if (allocated_bytes() + rounded(bytes) <= limit) {
      automatic_limit_ = std::max(limit - limit / 32, limit / 2);
    }
  }
  if (attempt == 0) {
    size_t freed = 0;
    int count = 0;
    while (freed < bytes) {
      Block* const victim = policy_.victim(bytes - freed);
      if (!victim) {
        break;
      }
      const size_t size = victim->size;
      const Outcome outcome = page_out(*victim);
      if (outcome == Outcome::Failed) {
        break;
      }
      if (outcome == Outcome::Moved) {
        freed += size;
        ++count;
      }
    }
    if (count > 0) {
      source = count == 1 ? Source::ReclaimOne : Source::ReclaimFragments;
      return true;
    }
  }
  if (attempt <= 1 && reclaim() > 0) {
    source = Source::ReclaimAll;
    return true;
  }
  if (attempt <= 2) {
    // Free blocks in use by no one may be split between segments of the wrong
    // sizes, or wait for events.
    const c10::cuda::CUDAGuard guard(device_);
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    compat::empty_cache(*native_);
    source = Source::CudaMallocRetry;
    return true;
  }
  return false;
}

void Pager::retry(const c10::OutOfMemoryError& error, size_t bytes, int attempt, Source& source) {
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      reclaim_for(bytes, attempt, source),
      error.what_without_backtrace(),
      " ",
      account(bytes, Guard::current_operator()));
}

void Pager::served(Source source) {
  if (source == Source::FreeList) {
    const int64_t before = device_allocs_;
    allocated_bytes();
    if (device_allocs_ > before) {
      source = Source::CudaMalloc;
    }
  }
  ++stats_.alloc_distribution[static_cast<size_t>(source)];
}

bool Pager::capturing() const {
  if (!pooling_) {
    return false; // a capture allocates from a pool
  }
  const c10::cuda::CUDAGuard guard(device_);
  const auto captures = [](cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
  };
  if (captures(c10::cuda::getCurrentCUDAStream(device_))) {
    return true;
  }
  // Another thread's capture: an event recorded on its stream would join it.
  return std::any_of(timelines_.begin(), timelines_.end(), [&](const auto& entry) {
    return captures(entry.first);
  });
}

// ---- storages ----

Block* Pager::block_of(c10::StorageImpl& storage) {
  const at::DataPtr& data = storage._mutable_data_ptr_no_checks();
  return data.get_deleter() == &Pager::deleter ? static_cast<Block*>(data.get_context()) : nullptr;
}

Block* Pager::adopt(c10::StorageImpl& storage, size_t smallest) {
  Block* block = block_of(storage);
  if (!block) {
    at::DataPtr& data = storage._mutable_data_ptr_no_checks();
    void* const address = data.get();
    const size_t bytes = storage.nbytes();
    if (bytes < smallest || bytes == 0 || address == nullptr || !data.device().is_cuda() ||
        data.get_deleter() != native_deleter_ || data.get_context() != address ||
        in_pool_.count(address)) {
      return nullptr;
    }
    const c10::Device device = data.device();
    block = new Block(*this, std::move(data), bytes);
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
    block->owner.emplace(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage));
  }
  return block;
}

void Pager::place(Block& block, c10::StorageImpl& storage, void* data) {
  at::DataPtr& held = storage._mutable_data_ptr_no_checks();
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
  try {
    const c10::cuda::CUDAGuard guard(pager.device_);
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
      pager.free_memory(*block);
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
  } catch (const std::exception& error) {
    // A destructor runs this. What the device did not take back is lost.
    LOG(WARNING) << "LMS: a storage was not freed cleanly: " << error.what();
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

void Pager::drop_host(Block& block) {
  if (block.host) {
    arena_.give(block.host, block.copied);
    block.host = {};
  }
}

// ---- moving ----

Pager::Outcome Pager::page_out(Block& block) {
  policy_.remove(block);
  auto storage = block.owner ? block.owner->lock() : c10::intrusive_ptr<c10::StorageImpl>();
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
      block.host = arena_.take(block.size);
    }
  } catch (const c10::Error& error) {
    trouble_ = error.what_without_backtrace();
    return false;
  }
  if (!copy && settings_.verify_clean) {
    verify(block);
  }
  block.state.to(State::PagingOut);
  try {
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
      for (const Use& use : block.uses) {
        const EventRef done =
            use.recorded ? use.timeline->mark() : use.timeline->after(use.position);
        if (block.home) {
          done->block(block.home->stream());
        } else {
          done->synchronize();
        }
      }
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
      const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
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
  if (std::memcmp(device.data(), block.host.data, block.size) != 0) {
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
  if (captured && !block.exported) {
    // The graph replays this address.
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    mark_exported(block);
  }
}

void Pager::mark_exported(Block& block) {
  if (!block.held()) {
    stats_.held_bytes.add(static_cast<int64_t>(block.size));
  }
  policy_.used(block);
  block.exported = true;
  wrote(block); // whoever has the address may write where no operator shows it
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
    mark_exported(block);
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
    }
    Lock::drop_later(std::move(storage));
  }
}

// ---- everything ----

size_t Pager::reclaim() {
  if (capturing()) {
    return 0;
  }
  size_t bytes = 0;
  while (Block* const victim = policy_.victim(1)) {
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
  } catch (...) {
    unpin_all();
    throw;
  }
  synchronize();
  for (Block* const block : blocks) {
    wrote(*block); // writes are not seen any more
  }
  unpin_all();
}

void Pager::synchronize() {
  const c10::cuda::CUDAGuard guard(device_);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}

size_t Pager::trim_host() {
  const c10::cuda::CUDAGuard guard(device_);
  return arena_.trim();
}

std::string Pager::account(size_t bytes, const char* op) const {
  const auto mib = [](int64_t n) {
    std::ostringstream text;
    text.precision(2);
    text << std::fixed << static_cast<double>(n) / (1 << 20) << " MiB";
    return text.str();
  };
  size_t limit = settings_.limit ? settings_.limit.load() : automatic_limit_;
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
       << ", host memory " << mib(static_cast<int64_t>(arena_.pinned_bytes())) << '.';
  if (!trouble_.empty()) {
    text << " The last page-out failed: " << trouble_;
  }
  return text.str();
}

} // namespace torch::cuda::lms
