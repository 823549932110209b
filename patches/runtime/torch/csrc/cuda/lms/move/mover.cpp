#include <torch/csrc/cuda/lms/move/mover.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/base/log.h>
#include <torch/csrc/cuda/lms/base/operation.h>
#include <torch/csrc/cuda/lms/compat/range.h>
#include <torch/csrc/cuda/lms/host/copy.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

namespace {

constexpr const char* kPagedOut =
    "Large Model Support (LMS) has paged this storage out to host memory, and it was used where "
    "LMS could not see it. Use it through a PyTorch operator, take its address with "
    "tensor.data_ptr() in Python, call the function that uses it through "
    "torch.cuda.lms.wrap(function), or hold it on the GPU with torch.cuda.lms.resident(tensor).";

} // namespace

Mover::Mover(
    c10::DeviceIndex device,
    const Settings& settings,
    const Native& native,
    Registry& registry,
    Stats& stats,
    Recorders& recorders)
    : device_(device),
      settings_(settings),
      native_(native),
      registry_(registry),
      stats_(stats),
      recorders_(recorders),
      supply_(device, settings, registry),
      timelines_(transfer_.events()),
      limbo_(device) {}

// ---- streams and uses ----

void Mover::used(Block& block, Timeline& timeline, uint64_t position) {
  for (Use& use : block.uses) {
    if (use.timeline == &timeline) {
      use.position = position;
      return;
    }
  }
  block.uses.push_back({&timeline, position, false});
}

void Mover::uses(Block& block, c10::cuda::CUDAStream stream) {
  if (!block.home || block.home->stream() != stream.stream()) {
    Timeline& line = timeline(stream);
    used(block, line, line.position());
  }
}

void Mover::record_stream(Block& block, c10::cuda::CUDAStream stream) {
  Timeline& line = timeline(stream);
  const auto known = std::find_if(
      block.uses.begin(), block.uses.end(), [&](const Use& use) { return use.timeline == &line; });
  if (known != block.uses.end()) {
    known->recorded = true;
  } else {
    block.uses.push_back({&line, 0, true});
  }
  if (block.memory) {
    const Stay stay(registry_, block);
    native_.record_stream(block.memory, stream);
  }
}

void Mover::order(Block& block, c10::cuda::CUDAStream stream, bool captured) {
  if (captured) {
    // A graph must not depend on work outside of it.
    const compat::RelaxedCapture relaxed;
    for (EventRef* const transfer : {&block.arrived, &block.left}) {
      if (*transfer) {
        (*transfer)->synchronize();
        transfer->reset();
      }
    }
  } else if (
      block.arrived && std::find(block.ordered.begin(), block.ordered.end(), stream.stream()) ==
                           block.ordered.end()) {
    // The handle of the default stream refers to the current device.
    const c10::cuda::CUDAGuard guard(device_);
    wait_for(block.arrived, stream.stream());
    if (lasting(stream)) { // otherwise the handle can become that of another stream
      block.ordered.push_back(stream.stream());
    }
  }
  if (block.state.is(State::PagingIn)) {
    block.state.to(State::Resident);
  }
}

void Mover::finish(Block& block) {
  if (const EventRef arrived = block.arrived) {
    {
      const Lock::Pause pause;
      const compat::RelaxedCapture relaxed; // another device may be captured
      const c10::cuda::CUDAGuard guard(device_);
      arrived->synchronize();
    }
    if (block.arrived == arrived) {
      block.arrived.reset();
    }
  }
}

// Makes a stream on which operators run wait for a transfer.
void Mover::wait_for(const EventRef& transfer, cudaStream_t stream) {
  const bool marked = recorders_.timed() && !transfer->done();
  if (marked) {
    recorders_.stalls(stream);
  }
  transfer->block(stream);
  if (marked) {
    recorders_.resumes(stream);
  }
}

void Mover::wrote(Block& block, cudaStream_t stream) {
  if (block.left) {
    const c10::cuda::CUDAGuard guard(device_);
    wait_for(block.left, stream);
  }
  wrote(block);
}

void Mover::wrote(Block& block) {
  supply_.drop(block);
}

void Mover::finish_collectives() {
  const uint64_t until = collectives_;
  // The streams of collectives are unknown, and so are the streams that wait for them.
  synchronize();
  finished_ = std::max(finished_, until);
}

void Mover::synchronize(c10::DeviceIndex device) {
  const Lock::Pause pause;
  const compat::RelaxedCapture relaxed; // another device may be captured
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}

// ---- page-out ----

// The number of bytes that a copy would move in the time of the block's transfer; 0 if not known.
size_t Mover::copy_bytes(const Block& block) const {
  const bool packed = block.host.packed != codec::Kind::None;
  return packed ? supply_.packing().copy_bytes(block) : block.size;
}

Transfer::Engine Mover::engine_of(const Block& block) {
  return engine(block.host.packed != codec::Kind::None);
}

// Begins the range in which the profiler shows a transfer of the block. The name and the values are
// what torch.cuda.lms.integrations.profiler reads.
void Mover::show(compat::Range& range, const char* transfer, const Block& block) const {
  if (C10_LIKELY(!range.wanted())) {
    return;
  }
  const std::string name = c10::str(
      "LMS ",
      transfer,
      " on cuda:",
      static_cast<int>(device_),
      ": ",
      Operation::label(),
      " (",
      block.size,
      " bytes)");
  range.begin(
      name,
      {static_cast<int64_t>(block.size),
       stats_.resident_bytes.current,
       stats_.paged_out_bytes.current});
}

// Copies the block to its host buffer. Throws c10::Error.
void Mover::copy_out(Block& block) {
  compat::Range range;
  show(range, "page-out", block);
  block.left = transfer_.page_out(
      engine_of(block), copy_bytes(block), [&](Relay& copies, cudaStream_t kernels) {
        if (block.host.packed != codec::Kind::None) {
          return supply_.packing().pack(block, checker().of(*block.host.hash), kernels, copies);
        }
        copy_to_host(block.host.buffer, 0, block.size, block.memory.get(), copies.stream());
        supply_.packing().copied(block);
        return copies.stream();
      });
}

// The reverse, into this memory. Throws c10::Error.
void Mover::copy_in(Block& block, void* memory) {
  compat::Range range;
  show(range, "page-in", block);
  // The last user of this memory may still be running on the home stream.
  const auto wait = [&](cudaStream_t writer) {
    if (!freed_.block(memory, block.size, writer)) {
      timeline(*block.home).mark()->block(writer);
    }
    taken(memory, block.size);
  };
  block.arrived = transfer_.page_in(
      engine_of(block), copy_bytes(block), wait, [&](Relay& copies, cudaStream_t kernels) {
        if (block.host.packed != codec::Kind::None) {
          const codec::Hash hash = checker().of(*block.host.hash);
          return supply_.packing().unpack(block, hash, memory, copies, kernels);
        }
        copy_to_device(block.host.buffer, 0, block.size, memory, copies.stream());
        return copies.stream();
      });
}

// Makes the stream wait for the block's uses on other streams: for the last use that an operator
// showed, or, with `everything`, for all work that is queued there.
void Mover::behind_uses(Block& block, cudaStream_t stream, bool everything) {
  for (const Use& use : block.uses) {
    if (use.timeline->stream().stream() == stream) {
      continue;
    }
    const bool all = use.recorded || (everything && lasting(use.timeline->stream()));
    (all ? use.timeline->mark() : use.timeline->after(use.position))->block(stream);
  }
}

// Whether the block's bytes are hashed when they leave, and again when its memory is given up.
bool Mover::checked(const Block& block) const {
  return block.host.hash && (!settings_.unchecked || block.host.packed != codec::Kind::None);
}

// Whether the hash runs on the home stream, where it takes a third of the time. The work of another
// stream that hashes also makes copies slower, on an H200 by up to 10 %
// (docs/results/2026-11-27-hash.md). Uses on other streams would hold up the home stream.
bool Mover::hashes_in_line(const Block& block, Checker::Pace pace) const {
  return pace == Checker::Pace::InLine && block.home && lasting(*block.home) &&
         std::all_of(block.uses.begin(), block.uses.end(), [&](const Use& use) {
           return use.timeline->stream() == *block.home;
         });
}

bool Mover::start_page_out(Block& block, Checker::Pace pace) {
  const c10::cuda::CUDAGuard guard(device_);
  // Without a hash, unseen uses are assumed to write.
  const bool unseen = !block.host.hash && !compat::kEveryAccessIsSeen;
  const bool copy = block.dirty || !block.host || unseen;
  block.state.to(State::PagingOut);
  if (!copy) {
    return true;
  }
  block.busy_until = 0;
  if (!hashes_in_line(block, pace)) {
    pace = Checker::Pace::Beside;
  }
  const cudaStream_t out = transfer_.out(engine_of(block));
  // What packs a block also hashes it.
  const bool hash = checked(block) && block.host.packed == codec::Kind::None;
  // The first stream that reads the block.
  const cudaStream_t first = !hash                           ? out
                             : pace == Checker::Pace::InLine ? block.home->stream()
                                                             : transfer_.ahead();
  try {
    behind_uses(block, first, unseen);
    if (unseen && block.home && lasting(*block.home)) {
      timeline(*block.home).mark()->block(first);
    }
    if (block.arrived) {
      block.arrived->block(first);
    }
    if (block.host.touched) {
      block.host.touched->block(out); // it is about to be overwritten
    }
    if (hash) {
      // The hash is computed before the copy: a write in between is then copied, and the release
      // check finds a different hash.
      checker().hash(*block.host.hash, block.memory.get(), block.size, pace, first);
      transfer_.events().record(first)->block(out);
    }
    copy_out(block);
    block.host.touched = block.left;
    block.dirty = false;
    stats_.page_out_bytes += static_cast<int64_t>(block.size);
  } catch (const c10::Error& error) {
    trouble_ = error.what_without_backtrace();
    revert(block);
    return false;
  }
  return true;
}

// Called when a copy to the host, or a later step of the page-out, failed: the bytes stay on the
// device. The copies that were issued may still write the host buffer, so this waits for them.
void Mover::revert(Block& block) {
  (void)cudaGetLastError();
  transfer_.wait(); // the last page-in may still read the buffer, too
  if (block.home && compat::is_external(*block.home)) {
    (void)cudaDeviceSynchronize(); // the user may have destroyed the stream
  } else if (block.home) {
    (void)cudaStreamSynchronize(block.home->stream());
  }
  (void)cudaGetLastError();
  block.left.reset();
  block.host.touched.reset();
  block.host.unseen.reset();
  wrote(block);
  block.state.to(State::Resident);
}

void Mover::cancel_page_out(Block& block) {
  if (block.state.is(State::PagingOut)) {
    block.state.to(State::Resident);
  }
}

bool Mover::finish_page_out(Block& block, c10::StorageImpl& storage) {
  const c10::cuda::CUDAGuard guard(device_);
  const bool copied = static_cast<bool>(block.left);
  // If the home stream is unknown or may have been destroyed, it cannot order anything. The stream
  // of the copies does this instead, and the memory is kept until its work is done.
  const bool ordered = block.home && lasting(*block.home);
  const cudaStream_t home =
      ordered ? block.home->stream() : transfer_.out(Transfer::Engine::Copies);
  EventRef done;
  try {
    // Unseen writes may be queued on the home stream, and on the other streams that use the block.
    // All that follows has to run after them.
    behind_uses(block, home, /*everything=*/true);
    if (block.arrived && (!ordered || std::find(block.ordered.begin(), block.ordered.end(), home) ==
                                          block.ordered.end())) {
      block.arrived->block(home);
    }
    if (block.left) {
      wait_for(block.left, home);
    }
    if (!copied && (settings_.verify || settings_.verify_clean) && !matches(block)) {
      ++stats_.clean_violations;
    }
    if (checked(block)) {
      const Checker::Slot hash = *block.host.hash;
      checker().check(hash, block.memory.get(), block.size, home);
      if (block.host.packed != codec::Kind::None) {
        supply_.packing().repack(block, checker().differs(hash), home);
      } else {
        checker().restore(hash, block.memory.get(), block.size, block.host.buffer, home);
      }
      supply_.hashes().leaves(hash, block.user);
      block.host.touched = done = transfer_.events().record(home);
      supply_.slots().written(block, done);
    }
    if (settings_.verify && !matches(block)) {
      ++stats_.violations;
    }
    pressure_ = true;
    if (!ordered && !done) {
      done = transfer_.events().record(home);
    }
    if (ordered) {
      leave_memory(block, done);
    }
  } catch (const c10::Error& error) {
    trouble_ = error.what_without_backtrace();
    revert(block);
    return false;
  }
  if (ordered) {
    Lock::drop_later(std::exchange(block.memory, at::DataPtr()));
  } else {
    keep_until(done, block, std::nullopt);
  }
  block.left.reset();
  block.arrived.reset();
  block.ordered.clear();
  Registry::hide(block, storage, kPagedOut);
  block.state.to(State::PagedOut);
  // The page-out has waited for these uses. Those of record_stream() are kept, because the user
  // does not call it again.
  block.uses.erase(
      std::remove_if(
          block.uses.begin(), block.uses.end(), [](const Use& use) { return !use.recorded; }),
      block.uses.end());
  debug_log(
      "[lms] page-out %zu bytes (%s) for %s\n",
      block.size,
      copied ? "copied" : "clean",
      Operation::label());
  if (!copied) {
    compat::Range range;
    show(range, "clean page-out", block);
  }
  stats_.clean_count += copied ? 0 : 1;
  ++stats_.page_out_count;
  trouble_.clear();
  stats_.resident_bytes.add(-static_cast<int64_t>(block.size));
  stats_.paged_out_bytes.add(static_cast<int64_t>(block.size));
  return true;
}

// Calls move(storage) if the block's storage still has it.
template <class F>
Mover::Outcome Mover::with_storage(Block& block, bool release, F move) {
  auto storage = block.owner ? compat::lock(*block.owner) : compat::StrongStorage();
  if (!storage) {
    return Outcome::Gone; // being freed: its deleter waits for the mutex
  }
  if (Registry::block_of(*storage) != &block) {
    block.owner.reset(); // the DataPtr was moved to another storage, where the guard finds it
    Lock::drop_later(std::move(storage));
    return Outcome::Gone;
  }
  Outcome outcome = Outcome::Failed;
  try {
    const c10::cuda::CUDAGuard guard(device_);
    if (!finished(block)) {
      outcome = Outcome::Unfinished;
    } else if (!supply_.take(block, release)) {
      outcome = Outcome::Busy;
    } else if (move(*storage)) {
      outcome = Outcome::Moved;
    }
  } catch (const c10::Error& error) {
    trouble_ = error.what_without_backtrace();
  }
  Lock::drop_later(std::move(storage));
  return outcome;
}

Mover::Outcome Mover::page_out(Block& block) {
  return with_storage(block, /*release=*/true, [&](c10::StorageImpl& storage) {
    // The compute that is queued now has nothing to do with a block that was not used lately.
    return start_page_out(block, Checker::Pace::Beside) && finish_page_out(block, storage);
  });
}

Mover::Outcome Mover::copy_ahead(Block& block) {
  return with_storage(block, /*release=*/false, [&](c10::StorageImpl&) {
    const bool started = start_page_out(block, Checker::Pace::InLine);
    cancel_page_out(block);
    return started;
  });
}

// Whether the host copy is equal to the bytes on the device. Waits for the device: only for tests.
bool Mover::matches(const Block& block) {
  std::string device(block.size, '\0');
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  C10_CUDA_CHECK(cudaMemcpy(&device[0], block.memory.get(), block.size, cudaMemcpyDeviceToHost));
  if (block.host.packed != codec::Kind::None) {
    return supply_.packing().holds(block, device.data());
  }
  bool same = true;
  block.host.buffer.each(block.size, [&](const char* part, size_t offset, size_t size) {
    same = same && std::memcmp(device.data() + offset, part, size) == 0;
  });
  return same;
}

// ---- page-in ----

void Mover::share(const Block& block, const at::DataPtr& memory) {
  // By index, because other threads can add streams during a pause. They cannot remove any.
  for (size_t i = 0; i < block.uses.size(); ++i) {
    native_.record_stream(memory, block.uses[i].timeline->stream());
  }
}

void Mover::share_with_all(Block& block) {
  std::vector<c10::cuda::CUDAStream> streams = timelines_.streams();
  streams.push_back(c10::cuda::getDefaultCUDAStream(device_));
  streams.push_back(c10::cuda::getCurrentCUDAStream(device_));
  for (const c10::cuda::CUDAStream stream : streams) {
    if (!block.on_device()) {
      return; // freed during a pause
    }
    native_.record_stream(block.memory, stream);
  }
}

void Mover::page_in(Block& block, at::DataPtr&& memory) {
  TORCH_CHECK(
      block.host || block.size == 0,
      "LMS: a storage of ",
      block.size,
      " bytes has been lost, which is a bug: please report it");
  const c10::cuda::CUDAGuard guard(device_);
  try {
    strays_.block(block.home->stream(), transfer_.in(), /*page_ins=*/true);
    if (block.host.touched) {
      block.host.touched->block(transfer_.in());
    }
    supply_.packing().learn(block);
    copy_in(block, memory.get());
  } catch (const c10::Error&) {
    // The copy may have been issued, and the memory is about to be freed: wait for the copy.
    (void)cudaGetLastError();
    transfer_.wait();
    block.arrived.reset();
    block.state.to(State::PagedOut);
    throw;
  }
  block.host.touched = block.arrived;
  block.memory = std::move(memory);
  block.ordered.clear();
  block.busy_until = 0;
  debug_log("[lms] page-in %zu bytes for %s\n", block.size, Operation::label());
  ++stats_.page_in_count;
  stats_.page_in_bytes += static_cast<int64_t>(block.size);
  stats_.resident_bytes.add(static_cast<int64_t>(block.size));
  stats_.paged_out_bytes.add(-static_cast<int64_t>(block.size));
}

// ---- on the device ----

bool Mover::relocate(Block& block, at::DataPtr&& memory) {
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t home = block.home->stream();
  auto storage = block.owner ? compat::lock(*block.owner) : compat::StrongStorage();
  bool issued = false;
  EventRef moved;
  try {
    if (storage && Registry::block_of(*storage) == &block) {
      order(block, *block.home, /*captured=*/false);
      strays_.block(home, home, /*page_ins=*/false);
      issued = true;
      C10_CUDA_CHECK(cudaMemcpyAsync(
          memory.get(), block.memory.get(), block.size, cudaMemcpyDeviceToDevice, home));
      if (block.left) {
        wait_for(block.left, home); // it reads the old memory
      }
      moved = transfer_.events().record(home);
      leave_memory(block, moved);
    }
  } catch (const c10::Error& error) {
    (void)cudaGetLastError();
    trouble_ = error.what_without_backtrace();
    if (issued) { // the copy may still write the memory that is dropped
      (void)cudaStreamSynchronize(home);
      (void)cudaGetLastError();
    }
    moved.reset();
  }
  if (moved) {
    std::swap(block.memory, memory);
    block.arrived = moved; // other streams wait for it before they use the block
    if (block.left) {
      block.left = moved; // which waits for it
    }
    block.ordered.assign({home});
    // Otherwise it is hidden until an operator brings it.
    if (compat::data_ptr(*storage).get() != compat::nowhere()) {
      Registry::place(block, *storage, block.memory.get());
    }
    debug_log("[lms] moved %zu bytes for %s\n", block.size, Operation::label());
    ++stats_.compacted_count;
    stats_.compacted_bytes += static_cast<int64_t>(block.size);
  }
  Lock::drop_later(std::move(memory));
  Lock::drop_later(std::move(storage));
  return static_cast<bool>(moved);
}

// ---- release ----

// Notes when the block's memory, which is about to go back to the native allocator, was last used:
// at the event, which its home stream has recorded or waits for. Without an event, everything that
// the home stream has queued until now counts as a use.
void Mover::leave_memory(const Block& block, EventRef last_use) {
  if (pressure_ && settings_.enabled && FreedMemory::knows(rounded(block.size))) {
    freed_.freed(
        block.memory.get(),
        rounded(block.size),
        last_use ? std::move(last_use) : timeline(*block.home).mark());
  }
}

void Mover::discard(Block& block, bool captured) noexcept {
  try {
    const c10::cuda::CUDAGuard guard(device_);
    if (block.memory) {
      strays_.leave(block, captured);
    }
    if (block.memory && captured && block.moved_home) {
      keep_until(end_of_uses(block), block, block.home);
    } else if (block.memory && captured && (block.arrived || block.left)) {
      // A captured stream must not wait for work outside of its graph. A copy to the host waits for
      // the block's page-in.
      keep_until(block.left ? block.left : block.arrived, block, block.home);
    } else if (block.memory) {
      const bool ordered = block.home && lasting(*block.home);
      // The user relies on the order of the stream that was current when the storage was allocated,
      // but the block may have been paged in on another stream.
      if (block.moved_home && ordered) {
        behind_uses(block, block.home->stream(), false);
      } else if (block.moved_home) {
        keep_until(end_of_uses(block), block, std::nullopt);
      }
      for (const EventRef& event : {block.left, block.arrived}) {
        if (!event || !block.memory) {
          continue;
        }
        const bool waited =
            ordered && event == block.arrived &&
            std::find(block.ordered.begin(), block.ordered.end(), block.home->stream()) !=
                block.ordered.end();
        if (ordered && !waited) {
          event->block(block.home->stream());
        } else if (!ordered) {
          keep_until(event, block, std::nullopt);
          break;
        }
      }
      if (ordered && !captured) {
        leave_memory(block, nullptr);
      }
    }
  } catch (const c10::Error&) {
    // This is called from a destructor and must not throw. A copy may be in flight, so the host
    // waits.
    (void)cudaGetLastError();
    (void)cudaDeviceSynchronize();
    (void)cudaGetLastError();
  }
  Lock::drop_later(std::exchange(block.memory, at::DataPtr()));
  supply_.drop(block);
  block.uses.clear(); // timelines that only this block needs may be forgotten now
}

// An event after all transfers and known uses of the block, except those that are being captured:
// what a graph uses stays for as long as the graph may run.
EventRef Mover::end_of_uses(Block& block) {
  const cudaStream_t out = transfer_.out(Transfer::Engine::Copies);
  for (const Use& use : block.uses) {
    Timeline& line = *use.timeline;
    // A stream that the user may have destroyed cannot be asked whether it is captured.
    const bool usable = lasting(line.stream()) ? !compat::is_capturing(line.stream().stream())
                                               : line.marked(use.position);
    if (usable) {
      (use.recorded && lasting(line.stream()) ? line.mark() : line.after(use.position))->block(out);
    }
  }
  for (const EventRef& event : {block.left, block.arrived}) {
    if (event) {
      event->block(out);
    }
  }
  return transfer_.events().record(out);
}

void Mover::keep_until(
    const EventRef& done,
    Block& block,
    std::optional<c10::cuda::CUDAStream> home) {
  at::DataPtr memory = std::exchange(block.memory, at::DataPtr());
  if (done && done->done()) {
    Lock::drop_later(std::move(memory));
  } else {
    limbo_.keep(std::move(memory), rounded(block.size), home, done);
  }
}

void Mover::collect() {
  limbo_.collect();
  supply_.hashes().collect();
  if (timelines_.too_many()) {
    std::set<const Timeline*> needed;
    strays_.collect(needed);
    registry_.each([&](Block& block) {
      for (const Use& use : block.uses) {
        needed.insert(use.timeline);
      }
    });
    timelines_.forget_all_but(needed);
  }
}

} // namespace torch::cuda::lms
