// The part of the pager that makes room for an allocation.

#include <torch/csrc/cuda/lms/pager.h>

#include <torch/csrc/cuda/lms/guard.h>
#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/log.h>
#include <torch/csrc/cuda/lms/neighbours.h>
#include <torch/csrc/cuda/lms/watch.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <unordered_map>

namespace torch::cuda::lms {

namespace {

// The step of reclaim_for() that pages nothing out.
constexpr int kEmptyCache = 4;

} // namespace

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
  for (int step = 0;;) {
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
      retry(error, bytes, step, source);
    }
  }
}

void* Pager::allocate_raw(size_t bytes, cudaStream_t stream) {
  Source source = Source::FreeList;
  for (int step = 0;;) {
    try {
      return native_->raw_alloc_with_stream(bytes, stream);
    } catch (const c10::OutOfMemoryError& error) {
      const Lock lock;
      retry(error, bytes, step, source);
    }
  }
}

void Pager::pool_begins(compat::MempoolId pool) {
  Watch::begin(); // a graph replays what its operators used
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
  for (int step = 0;;) {
    try {
      return native_->allocate(bytes);
    } catch (const c10::OutOfMemoryError& error) {
      retry(error, bytes, step, source);
    }
  }
}

size_t Pager::allocated_bytes() {
  const auto stats = native_->getDeviceStats(device_);
  device_allocs_ = stats.num_device_alloc;
  return static_cast<size_t>(stats.allocated_bytes[0].current);
}

Pager::Free Pager::free_bytes() {
  const auto stats = native_->getDeviceStats(device_);
  // Not 0, which would ask for what the device has free besides.
  size_t largest = 1;
  native_->cacheInfo(device_, &largest);
  const int64_t all = stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;
  return {all, largest > 1 ? static_cast<int64_t>(largest) : 0};
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
  return automatic_limit_ - headroom_.bytes();
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
  headroom_.allocated(request, automatic_limit_);
  const size_t limit = this->limit();
  int count = 0;
  for (;;) {
    // The user's limit is for the storages that LMS manages. The automatic one
    // is what the device has, for everything.
    const size_t in_use =
        settings_.limit ? static_cast<size_t>(stats_.resident_bytes.current) : allocated_bytes();
    if (Watch::counting() && in_use + request > Watch::threshold(limit)) {
      Watch::begin();
    }
    if (in_use + request <= limit) {
      if (in_use + request > limit - limit / 8) {
        arena_.prepare(); // so that the first page-out finds memory
      }
      return count;
    }
    Block* const victim = Watch::settled() ? policy_.victim(in_use + request - limit) : nullptr;
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

// After the native allocator failed: takes the next step that frees something,
// of an order in which each frees more and costs more. False when none is left.
bool Pager::reclaim_for(size_t bytes, int& step, Source& source) {
  ++stats_.out_of_memory_retries;
  if (capturing()) {
    return false;
  }
  Watch::begin();
  if (!Watch::settled()) {
    step = std::max(step, kEmptyCache); // nothing may be paged out
  }
  if (step == 0 && settings_.limit == 0) {
    if (allocated_bytes() + rounded(bytes) <= this->limit()) {
      headroom_.failed(automatic_limit_);
    }
  }
  for (;;) {
    switch (step++) {
      case 0: // one block that is large enough
        if (Block* const victim = policy_.fitting(rounded(bytes))) {
          if (page_out(*victim) == Outcome::Moved) {
            source = Source::ReclaimOne;
            return true;
          }
        }
        break;
      case 1: // several that lie side by side
        if (reclaim_neighbours(rounded(bytes))) {
          source = Source::ReclaimFragments;
          return true;
        }
        break;
      case 2: // so many bytes, wherever they lie
        if (reclaim(bytes) > 0) {
          source = Source::ReclaimFragments;
          return true;
        }
        break;
      case 3:
        if (reclaim() > 0) {
          source = Source::ReclaimAll;
          return true;
        }
        break;
      case kEmptyCache: {
        // Free memory that no one uses may be split between segments of the
        // wrong sizes, or wait for events.
        const c10::cuda::CUDAGuard guard(device_);
        C10_CUDA_CHECK(cudaDeviceSynchronize());
        native_->emptyCache();
        source = Source::CudaMallocRetry;
        return true;
      }
      default:
        return false;
    }
  }
}

bool Pager::reclaim_neighbours(size_t bytes) {
  std::unordered_map<size_t, Block*> idle; // by address
  for (Block* const block : blocks_) {
    // The native allocator keeps memory back that other streams were told of.
    const bool shared = std::any_of(
        block->uses.begin(), block->uses.end(), [](const Use& use) { return use.recorded; });
    if (block->idle && !shared) {
      idle.emplace(reinterpret_cast<size_t>(block->memory.get()), block);
    }
  }
  const auto snapshot = compat::snapshot(*native_);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_).stream();
  bool moved = false;
  for (Block* const block : neighbours(snapshot.segments, device_, stream, bytes, idle)) {
    if (block->idle) {
      moved = page_out(*block) == Outcome::Moved || moved;
    }
  }
  return moved;
}

void Pager::retry(const c10::OutOfMemoryError& error, size_t bytes, int& step, Source& source) {
  if (reclaim_for(bytes, step, source)) {
    return;
  }
  const char* const op = Guard::current_operator();
  debug_log("[lms] out of memory: %zu bytes for %s\n", bytes, op ? op : "-");
  Guard::refused(*this, bytes);
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, error.what_without_backtrace(), " ", account(bytes, op));
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

} // namespace torch::cuda::lms
