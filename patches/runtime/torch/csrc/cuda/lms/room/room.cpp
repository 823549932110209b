#include <torch/csrc/cuda/lms/room/room.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/base/log.h>
#include <torch/csrc/cuda/lms/base/operation.h>
#include <torch/csrc/cuda/lms/room/pages.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <sstream>

namespace torch::cuda::lms {

namespace {

std::string mib(int64_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

// The source of an allocation after this number of page-outs.
Source source_of(int victims) {
  return victims == 0   ? Source::FreeList
         : victims == 1 ? Source::ReclaimOne
                        : Source::ReclaimFragments;
}

// When this number of bytes of the automatic limit is in use, LMS starts to watch operators. Below
// it, there is room for whatever operators run at that moment, and little memory belongs to
// storages that no operator is seen to use later.
size_t threshold(size_t limit) {
  return limit / 20;
}

} // namespace

Room::Room(
    c10::DeviceIndex device,
    const Settings& settings,
    const Native& native,
    Pools& pools,
    Registry& registry,
    Policy& policy,
    Mover& mover,
    Stats& stats,
    Recorders& recorders,
    Attention& attention)
    : device_(device),
      settings_(settings),
      native_(native),
      pools_(pools),
      registry_(registry),
      policy_(policy),
      mover_(mover),
      stats_(stats),
      recorders_(recorders),
      attention_(attention),
      limit_(device, settings, native, pools),
      compactor_(device, native, registry, policy, mover, attention, pools),
      evictor_(device, native, registry, policy, mover, attention, pools, compactor_),
      steering_(device, native) {}

// ---- allocations ----

at::DataPtr Room::allocate(size_t bytes) {
  Operation::current().check();
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_);
  if (pools_.takes(stream.stream())) {
    at::DataPtr memory = native_.allocate(bytes);
    pools_.given(memory.get());
    return memory;
  }
  Request request{bytes};
  const bool managed = bytes >= settings_.size;
  const bool small = !managed && !FreedMemory::knows(bytes) && !keeps_to_limit(); // fast path
  at::DataPtr placed;
  if (!small) {
    const Lock lock;
    prepares(stream.stream());
    placed = take_now(planned_ && managed ? planned_->piece_of_next(bytes) : std::nullopt);
    if (!placed) {
      request.source = source_of(make_room(bytes));
    }
  }
  for (;;) {
    request.cap = limit_.cap().changes();
    try {
      at::DataPtr memory = placed ? std::move(placed) : native_.allocate(bytes);
      // If the address is handed out here, its pool no longer exists.
      pools_.taken_back(memory.get());
      if (small) {
        return memory;
      }
      const Lock lock;
      prepared(stream.stream());
      mover_.taken(memory.get(), bytes);
      if (!managed) {
        keep_to_limit();
        return memory;
      }
      served(request.source);
      return registry_.own(std::move(memory), bytes, stream);
    } catch (const c10::OutOfMemoryError& error) {
      const Lock lock;
      retry(error, request);
    }
  }
}

void* Room::allocate_raw(size_t bytes, cudaStream_t stream) {
  Request request{bytes};
  const bool large = FreedMemory::knows(bytes);
  if (large || keeps_to_limit()) {
    const Lock lock;
    prepares(stream);
    make_room(bytes);
  }
  for (;;) {
    request.cap = limit_.cap().changes();
    try {
      void* const memory = native_.raw_allocate(bytes, stream);
      const Lock lock;
      prepared(stream);
      mover_.taken(memory, bytes);
      if (large) {
        recorders_.workspace(bytes);
      }
      keep_to_limit();
      return memory;
    } catch (const c10::OutOfMemoryError& error) {
      const Lock lock;
      retry(error, request);
    }
  }
}

// Allocates the memory for a page-in, with the mutex held. The native allocator may have to wait
// for the device.
at::DataPtr Room::obtain(const Block& block) {
  const size_t bytes = block.size;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_).stream();
  prepares(stream);
  if (at::DataPtr memory = take_now(planned_ ? planned_->piece_of(block) : std::nullopt)) {
    prepared(stream);
    ++stats_.alloc_distribution[static_cast<size_t>(Source::FreeList)];
    return memory;
  }
  Request request{bytes, source_of(make_room(bytes))};
  for (;;) {
    request.cap = limit_.cap().changes();
    try {
      at::DataPtr memory = native_.allocate(bytes);
      prepared(stream);
      try {
        served(request.source);
      } catch (const c10::Error&) {
        Lock::drop_later(std::move(memory));
        throw;
      }
      return memory;
    } catch (const c10::OutOfMemoryError& error) {
      retry(error, request);
    }
  }
}

// Around the search for memory. What is captured has no times.
void Room::prepares(cudaStream_t stream) {
  if (recorders_.timed() && !pools_.capturing()) {
    const c10::cuda::CUDAGuard guard(device_);
    recorders_.prepares(stream);
  }
}

void Room::prepared(cudaStream_t stream) {
  if (recorders_.timed() && !pools_.capturing()) {
    const c10::cuda::CUDAGuard guard(device_);
    recorders_.prepared(stream);
  }
}

// ---- page-ins ----

void Room::bring(Block& block, c10::cuda::CUDAStream stream) {
  const bool captured = pools_.capturing();
  for (;;) {
    if (block.state.is(State::PagedOut)) {
      fetch(block);
    } else if (block.state.is(State::PagingIn) && !block.on_device()) {
      Lock::wait(); // another thread is allocating memory for it
      continue;
    }
    break;
  }
  mover_.order(block, stream, captured);
  if (block.hidden && block.owner) {
    auto storage = block.owner->lock();
    if (storage && Registry::block_of(*storage) == &block) {
      Registry::show(block, *storage);
    }
    Lock::drop_later(std::move(storage));
  }
  if (captured && !block.state.is(State::Freed) && !block.stays.has(Reason::Graph)) {
    // The graph replays this address, and may write to it without being seen.
    const compat::RelaxedCapture relaxed;
    registry_.stay(block, Reason::Graph);
    mover_.wrote(block);
  }
}

void Room::fetch(Block& block) {
  check_not_captured(block);
  fetch_into(block, [this](const Block& fetched) { return obtain(fetched); });
}

void Room::check_not_captured(const Block& block) {
  TORCH_CHECK(
      !pools_.capturing(),
      "LMS: a storage of ",
      block.size,
      " bytes is in host memory, and nothing can be paged in while a CUDA graph is captured. "
      "Hold it with torch.cuda.lms.resident(...) before the capture.");
}

// Pages the block in, into memory from obtain(block). Pauses the mutex.
template <class F>
void Room::fetch_into(Block& block, F obtain) {
  constexpr const char* kGone =
      "LMS: the memory of a paged-out storage was moved to another storage (set_data_ptr)";
  auto storage = block.owner ? block.owner->lock() : compat::StrongStorage();
  TORCH_CHECK(storage && Registry::block_of(*storage) == &block, kGone);
  const c10::cuda::CUDAGuard guard(device_);
  const compat::RelaxedCapture relaxed; // another device may be captured
  if (!block.home || compat::is_external(*block.home)) {
    // The home stream is unknown, or the user may have destroyed it.
    block.home = c10::cuda::getCurrentCUDAStream(device_);
    block.moved_home = true;
  }
  const c10::cuda::CUDAStreamGuard stream_guard(*block.home);
  // From now on, other threads that need the block wait.
  block.state.to(State::PagingIn);
  at::DataPtr memory;
  try {
    {
      const Pools::Outside outside(pools_, native_, block.home->stream());
      memory = obtain(block);
    }
    mover_.share(block, memory);
    check_not_captured(block); // a capture may have begun meanwhile
    TORCH_CHECK(!block.state.is(State::Freed) && Registry::block_of(*storage) == &block, kGone);
    mover_.page_in(block, std::move(memory));
  } catch (...) {
    if (block.state.is(State::PagingIn)) {
      block.state.to(State::PagedOut);
    }
    Lock::notify();
    Lock::drop_later(std::move(memory));
    Lock::drop_later(std::move(storage));
    throw;
  }
  Lock::notify();
  Lock::drop_later(std::move(storage));
}

// ---- plans ----

// Whether a request can be served within the limit, from free memory or by the device.
bool Room::has_room(size_t bytes) {
  const size_t limit = limit_.bytes();
  const auto [allocated, reserved] = usage();
  if (allocated - std::min(allocated, mover_.limbo().bytes()) + bytes > limit) {
    return false;
  }
  // The native allocator may be allowed less at present.
  const bool from_device = reserved + bytes <= limit && limit_.cap().admits(reserved, bytes);
  return from_device || native_.largest_free(device_) >= bytes;
}

bool Room::may_copy(const Block& block) const {
  return block.idle || (block.state.is(State::Resident) && block.on_device() && block.owner &&
                        Registry::only_this_thread_uses(block));
}

bool Room::copy_ahead(Block& block) {
  return mover_.copy_ahead(block) == Mover::Outcome::Moved;
}

bool Room::prefetch(Block& block) {
  if (!block.state.is(State::PagedOut)) {
    return false;
  }
  const Stay stay(registry_, block);
  // With it, fetch_into() does not take the GIL for a storage that only Python has.
  auto storage = block.owner ? compat::lock(*block.owner) : compat::StrongStorage();
  bool fetched = false;
  try {
    const auto piece = planned_ ? planned_->piece_of(block) : std::nullopt;
    const bool room = piece || has_room(rounded(block.size));
    if (storage && room && block.state.is(State::PagedOut)) {
      fetch_into(block, [&](const Block& wanted) {
        at::DataPtr memory = piece ? take(*piece) : native_.allocate(wanted.size);
        TORCH_CHECK(memory, "LMS: no room"); // not yet
        return memory;
      });
      fetched = true;
    }
  } catch (const c10::Error&) {
    (void)cudaGetLastError(); // whoever needs the block gets the error
  }
  Lock::drop_later(std::move(storage));
  return fetched;
}

// Memory where a plan wants it; none if it is in use.
at::DataPtr Room::take(const Planned::Piece& piece) {
  if (pools_.capturing() || settings_.shuffle) {
    return at::DataPtr();
  }
  mover_.collect();
  mover_.supply().hashes().report();
  at::DataPtr memory = steering_.take(piece);
  if (!memory && vacate(piece)) {
    memory = steering_.take(piece);
  }
  if (memory) {
    limit_.allocated(piece.bytes);
    ++stats_.placed_count;
  }
  return memory;
}

// The same for a piece that is needed at once, if the plan wants one.
at::DataPtr Room::take_now(const std::optional<Planned::Piece>& piece) {
  if (!piece) {
    return at::DataPtr();
  }
  at::DataPtr memory = take(*piece);
  planned_->took(static_cast<bool>(memory));
  return memory;
}

// Pages out what is where a plan wants other memory: after a departure, for example. Returns
// whether it has paged out all of it.
bool Room::vacate(const Planned::Piece& piece) {
  if (!may_move()) {
    return false;
  }
  std::vector<Block*> blocks;
  registry_.each([&](Block& block) {
    const auto begin = reinterpret_cast<size_t>(block.memory.get());
    if (block.on_device() && begin < piece.address + piece.bytes &&
        piece.address < begin + block.size) {
      blocks.push_back(&block);
    }
  });
  const bool gone = !blocks.empty() && std::all_of(blocks.begin(), blocks.end(), [&](Block* block) {
    return evictor_.drop(*block);
  });
  mover_.collect();
  return gone;
}

size_t Room::lay_out(size_t bytes, bool exceeds) {
  try {
    evictor_.reclaim(SIZE_MAX);
    mover_.synchronize();
    mover_.limbo().wait();
    empty_cache();
    limit_.cap().need(reserved_bytes(), exceeds ? bytes : 0);
    const size_t address = steering_.find(bytes);
    if (address != 0) {
      // Nothing waits for more than it has to before it uses the memory.
      mover_.left(reinterpret_cast<void*>(address), bytes);
    }
    return address;
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
    return 0;
  }
}

// ---- room for a request ----

// Pages out until the request fits under the limit or no block is idle; returns how many blocks
// were paged out. If the request still does not fit, it is attempted anyway.
int Room::make_room(size_t bytes) {
  if (pools_.capturing()) {
    return 0;
  }
  mover_.collect();
  mover_.supply().hashes().report();
  if (settings_.stress) {
    evictor_.reclaim(SIZE_MAX);
  }
  if (settings_.shuffle) {
    compactor_.shuffle();
  }
  const size_t request = rounded(bytes);
  limit_.allocated(request);
  if (settings_.late) {
    return 0;
  }
  int count = 0;
  size_t reserved = 0;
  for (;;) {
    const size_t limit = limit_.bytes();
    const Usage now = usage();
    const size_t used = now.allocated - std::min(now.allocated, mover_.limbo().bytes());
    reserved = now.reserved;
    if (attention_.counting() && used + request > threshold(limit)) {
      attention_.begin();
    }
    if (used + request <= limit) {
      // So that the first page-out has what it needs.
      if (used + request > limit - limit / 8 && mover_.supply().prepare()) {
        continue;
      }
      break;
    }
    if (limit_.look_again()) {
      continue;
    }
    Block* const victim = evictor_.victim(used + request - limit);
    if (!victim) {
      break;
    }
    const Mover::Outcome outcome = evictor_.page_out(*victim);
    if (outcome == Mover::Outcome::Failed) {
      break; // the next one would fail, too
    }
    count += outcome == Mover::Outcome::Moved;
  }
  if (limit_.take_changed() && reserved > limit_.cap().bytes()) {
    empty_cache(); // more than the new limit may have been reserved before it was set
    reserved = usage().reserved;
  }
  make_piece(request, reserved);
  return count;
}

// How many bytes the native allocator may still take from the device, as far as that is known.
size_t Room::obtainable_from_device(size_t reserved) const {
  return std::min(limit_.free(), limit_.cap().left(reserved));
}

// Called before a request for which there is room. If free memory lies in pieces that are all too
// small, the native allocator would fail, which costs much more than to join some.
void Room::make_piece(size_t request, size_t reserved) {
  if (!FreedMemory::knows(request) || attention_.counting()) {
    return;
  }
  const bool admitted = limit_.cap().admits(reserved, request);
  if ((admitted && in_pages(request) <= limit_.free()) ||
      native_.largest_free(device_) >= request) {
    return;
  }
  const size_t left = obtainable_from_device(reserved);
  bool joined = compactor_.join(request, left);
  if (!joined && mover_.limbo().bytes() > 0) {
    mover_.limbo().wait();
    joined = compactor_.join(request, left);
  }
  // To wait for these page-outs takes milliseconds at most, and the native allocator more.
  if (!joined && evictor_.reclaim_obstacles(request, left)) {
    ++in_pieces_;
    joined = compactor_.join(request, left);
  }
  if (joined && !admitted && native_.largest_free(device_) < request) {
    limit_.cap().open(reserved, request);
  }
}

// Called after the native allocator failed: tries the efforts in turn until one has freed
// something. Each frees more and costs more than the one before. Returns false if none is left.
bool Room::free_some(Request& request) {
  const size_t bytes = request.bytes;
  Effort& effort = request.effort;
  Source& source = request.source;
  ++stats_.out_of_memory_retries;
  debug_log("[lms] no memory for %zu bytes for %s\n", bytes, Operation::label());
  if (pools_.capturing()) {
    return false;
  }
  attention_.begin();
  if (!attention_.settled()) {
    effort = std::max(effort, Effort::Cache); // nothing may be paged out
  }
  if (effort == Effort::Pages) {
    limit_.look();
    if (usage().allocated + rounded(bytes) <= limit_.bytes()) {
      limit_.failed();
    }
  }
  for (;;) {
    if (pools_.capturing()) {
      return false; // a capture may have begun in a pause
    }
    const Effort now = effort;
    effort = static_cast<Effort>(static_cast<int>(effort) + (now != Effort::None));
    switch (now) {
      case Effort::Pages: // the pages that are missing, with expandable segments
        if (evictor_.reclaim_pages(rounded(bytes), obtainable_from_device(reserved_bytes()))) {
          source = Source::ReclaimFragments;
          return true;
        }
        break;
      case Effort::OneBlock: // a single block that is large enough
        if (evictor_.reclaim_one(rounded(bytes))) {
          source = Source::ReclaimOne;
          return true;
        }
        break;
      case Effort::Neighbours: // several adjacent blocks
        if (evictor_.reclaim_neighbours(rounded(bytes))) {
          source = Source::ReclaimFragments;
          return true;
        }
        break;
      case Effort::Bytes: // enough bytes, wherever they are
        if (evictor_.reclaim(bytes) > 0) {
          source = Source::ReclaimFragments;
          return true;
        }
        break;
      case Effort::Everything:
        if (evictor_.reclaim(SIZE_MAX) > 0) {
          source = Source::ReclaimAll;
          return true;
        }
        break;
      case Effort::Limbo: // memory that is paged out but not given back yet
        if (mover_.limbo().bytes() > 0) {
          mover_.limbo().wait();
          source = Source::ReclaimAll;
          return true;
        }
        break;
      case Effort::Cache: // free memory, which may be divided among segments of the wrong sizes
        mover_.synchronize();
        empty_cache();
        source = Source::CudaMallocRetry;
        return true;
      case Effort::Limit: // the user's limit; repeated, because another thread may take the memory
        if (give_way(bytes)) {
          effort = Effort::Limit;
          return true;
        }
        break;
      case Effort::None:
        return false;
    }
  }
}

void Room::empty_cache() {
  const c10::cuda::CUDAGuard guard(device_);
  native_.empty_cache();
}

bool Room::give_way(size_t bytes) {
  if (!limit_.cap().give_way(reserved_bytes(), rounded(bytes))) {
    return false;
  }
  debug_log("[lms] the limit gives way to %zu bytes for %s\n", bytes, Operation::label());
  ++stats_.over_limit_count;
  const auto over = static_cast<int64_t>(limit_.cap().bytes() - settings_.limit);
  stats_.over_limit_bytes_peak = std::max(stats_.over_limit_bytes_peak, over);
  return true;
}

void Room::retry(const c10::OutOfMemoryError& error, Request& request) {
  limit_.cap().close();
  if (free_some(request)) {
    return;
  }
  limit_.cap().enforce();
  const bool limited = limit_.cap().bytes() != SIZE_MAX && request.again-- > 0;
  if (request.cap != limit_.cap().changes() || limited) {
    // Another thread may have changed the limit or the reserved memory in the meantime.
    request.effort = Effort::Limit;
    return;
  }
  const size_t bytes = request.bytes;
  Operation& operation = Operation::current();
  debug_log("[lms] out of memory: %zu bytes for %s\n", bytes, Operation::label());
  operation.refuse(device_, bytes);
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, error.what_without_backtrace(), " ", account(bytes, operation.name));
}

// ---- numbers ----

Room::Usage Room::usage() {
  const auto stats = native_.stats(device_);
  device_allocs_ = stats.num_device_alloc;
  return {
      static_cast<size_t>(stats.allocated_bytes[0].current),
      static_cast<size_t>(stats.reserved_bytes[0].current)};
}

size_t Room::in_use() {
  const size_t allocated = usage().allocated;
  return allocated - std::min(allocated, mover_.limbo().bytes());
}

size_t Room::obtainable_bytes() {
  const size_t limit = limit_.bytes();
  const size_t used = in_use();
  const size_t stays = used - std::min(used, idle_bytes());
  return limit - std::min(limit, stays);
}

Room::Free Room::free_bytes() {
  const auto stats = native_.stats(device_);
  const int64_t all = stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;
  return {all, static_cast<int64_t>(native_.largest_free(device_))};
}

void Room::served(Source source) {
  const int64_t before = device_allocs_;
  if (source == Source::FreeList) {
    usage();
    if (device_allocs_ > before) {
      source = Source::CudaMalloc;
    }
  }
  ++stats_.alloc_distribution[static_cast<size_t>(source)];
  if (device_allocs_ > before && !settings_.late && !attention_.counting() && !pools_.capturing()) {
    keep_spare();
  }
  keep_to_limit();
}

// Called when the native allocator has taken memory from the device. Libraries need some, too, and
// nobody retries their requests, so this keeps some memory free for them.
void Room::keep_spare() {
  limit_.look();
  if (limit_.free() < limit_.spare() && free_bytes().all > 0) {
    limit_.failed();
    empty_cache();
  }
}

bool Room::keeps_to_limit() const {
  return !compat::kHasFraction && limit_.cap().bytes() != SIZE_MAX;
}

// Called after each request: the memory in use is within the limit then, if that is possible. Keeps
// the reserved memory within it, too. Ends what make_piece() has opened for the request.
void Room::keep_to_limit() {
  limit_.cap().close();
  if (!keeps_to_limit() || settings_.late || attention_.counting()) {
    return;
  }
  if (reserved_bytes() > limit_.cap().bytes() && free_bytes().all > 0) {
    limit_.failed();
    empty_cache();
  }
  if (reserved_bytes() > limit_.cap().bytes()) {
    give_way(0);
  }
}

void Room::went_on(size_t bytes, const char* op) {
  {
    const Lock lock;
    ++stats_.out_of_memory_caught;
  }
  TORCH_WARN_ONCE(
      "Large Model Support (LMS): ",
      op ? op : "an operator",
      " went on without ",
      mib(static_cast<int64_t>(bytes)),
      " that it requested. It may have used another algorithm, whose results can differ in the last"
      " bits. Free memory is fragmented, or the limit is too low: try the allocator's setting"
      " expandable_segments:True, or a higher limit. This warning is shown once;"
      " torch.cuda.lms.stats()[\"out_of_memory_caught\"] counts all cases.");
}

void Room::operator_failed(const char* op) {
  try {
    size_t free = 0;
    size_t spare = 0;
    size_t now = 0;
    {
      const Lock lock;
      if (pools_.capturing()) {
        return;
      }
      limit_.look();
      free = limit_.free();
      spare = limit_.spare();
      if (free >= spare) {
        return;
      }
      evictor_.reclaim(spare - free);
      mover_.synchronize();
      empty_cache();
      limit_.look();
      now = limit_.free();
    }
    const bool more = now > free; // otherwise everything is in use, or others have taken it
    TORCH_WARN(
        "Large Model Support (LMS): ",
        op ? op : "an operator",
        " failed while the device had ",
        mib(static_cast<int64_t>(free)),
        " free for memory that is not PyTorch's, such as handles and kernels of cuBLAS, cuDNN and"
        " NCCL. ",
        more ? "LMS has made room for them, so the operation can be tried again. Now "
             : "LMS could not make room for them. Still ",
        mib(static_cast<int64_t>(now)),
        " are free.");
  } catch (const std::exception&) {
    (void)cudaGetLastError(); // the error of the operator itself is more useful
  }
}

std::string Room::account(size_t bytes, const char* op) const {
  std::ostringstream text;
  text << "Large Model Support (LMS) could not make room: ";
  if (op && *op) {
    text << op << " asked for ";
  } else {
    text << "the request is ";
  }
  text << mib(static_cast<int64_t>(bytes)) << "; limit "
       << mib(static_cast<int64_t>(limit_.known())) << (settings_.limit ? "" : " (automatic)")
       << ", resident " << mib(stats_.resident_bytes.current) << ", of which pinned by operators "
       << mib(stats_.pinned_bytes.stats[0].current) << " and held "
       << mib(stats_.held_bytes.current) << ", paged out " << mib(stats_.paged_out_bytes.current)
       << ", host memory " << mib(mover_.supply().arena().pinned().current) << '.';
  if (!attention_.settled()) {
    text << " LMS has just started to watch operators. It pages nothing out until the operators"
            " that began before have ended.";
  }
  if (!mover_.trouble().empty()) {
    text << " The last page-out failed: " << mover_.trouble();
  }
  return text.str();
}

} // namespace torch::cuda::lms
