#include <torch/csrc/cuda/lms/move/supply.h>

#include <torch/csrc/cuda/lms/base/lock.h>

#include <c10/cuda/CUDAGuard.h>

#include <utility>

namespace torch::cuda::lms {

namespace {

// Whether the block's host copy only saves time. Until it has memory, the copy of a block that is
// paged in is the only one.
bool saves_time(const Block& block) {
  return block.host && (block.state.is(State::Resident) ||
                        (block.state.is(State::PagingIn) && block.on_device()));
}

} // namespace

// ---- host memory and hashes of a block ----

bool Supply::take(Block& block, bool release) {
  slots_.settle([this](Block& settled) { packing_.learn(settled); });
  if (!hashes_.checker().ready()) {
    return false;
  }
  if (release && Slots::shrunk(block) && !extend(block)) {
    return false;
  }
  if (block.host) {
    return true;
  }
  const codec::Kind kind = checks() ? packing_.wanted(block) : codec::Kind::None;
  if (!prepared()) {
    return false;
  }
  Demand demand{block.size};
  if (kind != codec::Kind::None) {
    demand = Slots::demand(packing_.most(block), packing_.expected(block));
  }
  demand.coming = slots_.coming();
  HostBuffer buffer;
  if (!arena_.take(demand, buffer)) {
    return false;
  }
  block.host.buffer = std::move(buffer);
  if (checks()) {
    block.host.hash = hashes_.take();
  }
  // Without a hash, nobody would notice if the bytes came back as other ones.
  if (kind != codec::Kind::None && block.host.hash &&
      Packer::fits(block.memory.get(), block.size, block.host.buffer)) {
    block.host.packed = kind;
    slots_.taken(block, demand.spare);
  } else {
    arena_.shrink(block.host.buffer, block.size);
  }
  return true;
}

// Before the memory of a block is given up whose host copy is true: if an unseen write is found,
// the block is packed again, whatever it has become. Returns false if only provide() can help,
// which drops the copy if there is no memory for that.
bool Supply::extend(Block& block) {
  if (!slots_.extend(block)) {
    return false;
  }
  if (!Packer::fits(block.memory.get(), block.size, block.host.buffer)) {
    drop(block);
  }
  return true;
}

void Supply::drop(Block& block) {
  block.dirty = true;
  packing_.learn(block);
  if (block.host.hash) {
    hashes_.retire(*block.host.hash, block.host.touched);
  }
  if (block.host) {
    slots_.dropped(block);
    Arena::Freed freed;
    if (const std::optional<Like> unseen = block.host.unseen) {
      freed = [this, unseen](const HostBuffer& buffer) { packing_.learn(*unseen, buffer); };
    }
    arena_.give(block.host.buffer, block.host.touched, std::move(freed));
  }
  block.host = {};
}

void Supply::drop_clean_copies(size_t bytes) {
  size_t dropped = 0;
  registry_.each([&](Block& block) {
    if (dropped < bytes && saves_time(block)) {
      dropped += block.host.buffer.size();
      drop(block);
    }
  });
}

// Drops as many of these copies as give this number of bytes; none if all are not enough.
bool Supply::give_up_copies(size_t bytes) {
  size_t found = 0;
  registry_.each([&](Block& block) { found += saves_time(block) ? block.host.buffer.size() : 0; });
  if (found < bytes) {
    return false;
  }
  drop_clean_copies(bytes);
  return true;
}

// ---- what is missing ----

bool Supply::prepared() const {
  return hashes_.checker().ready() && packing_.unprepared() == codec::Kind::None;
}

// Makes the kernels, or the memory, that page-outs lack. If another thread does, waits for it.
void Supply::make_kernels() {
  if (making_) {
    Lock::wait();
    return;
  }
  const c10::cuda::CUDAGuard guard(device_);
  const compat::RelaxedCapture relaxed; // another device may be captured
  Checker& checker = hashes_.checker();
  const codec::Kind kind = packing_.unprepared();
  const bool checks = !checker.ready();
  making_ = true;
  {
    const Lock::Pause pause;
    checks ? checker.make() : packing_.make(kind);
  }
  making_ = false;
  checks ? checker.made() : packing_.made(kind);
  Lock::notify();
}

bool Supply::prepare_kernels() {
  bool paused = false;
  while (!prepared()) {
    make_kernels();
    paused = true;
  }
  return paused;
}

void Supply::provide() {
  const c10::cuda::CUDAGuard guard(device_);
  if (!prepared()) {
    make_kernels();
  } else if (arena_.pinning()) {
    arena_.wait_for_pinner();
  } else if (const size_t wanted = arena_.wanted()) {
    try {
      arena_.grow();
    } catch (const c10::Error&) {
      if (arena_.oldest() || slots_.oldest()) {
        wait_for_copy();
      } else if (!give_up_copies(wanted)) {
        throw;
      }
    }
  } else {
    wait_for_copy();
  }
}

// Waits for the first work after which host memory is free.
void Supply::wait_for_copy() {
  const EventRef copied = arena_.oldest();
  if (const EventRef oldest = copied ? copied : slots_.oldest()) {
    {
      const Lock::Pause pause;
      const c10::cuda::CUDAGuard guard(device_);
      oldest->synchronize();
    }
    arena_.finished(oldest);
    slots_.finished(oldest, [this](Block& block) { packing_.learn(block); });
  }
}

size_t Supply::reserve(size_t bytes) {
  const c10::cuda::CUDAGuard guard(device_);
  const compat::RelaxedCapture relaxed; // another device may be captured
  return arena_.reserve(bytes);
}

size_t Supply::trim() {
  // What other threads give back meanwhile is not waited for.
  size_t waits = arena_.pending() + slots_.pending();
  while ((arena_.oldest() || slots_.oldest()) && waits-- > 0) {
    wait_for_copy();
  }
  const c10::cuda::CUDAGuard guard(device_);
  const compat::RelaxedCapture relaxed; // another device may be captured
  return arena_.trim();
}

} // namespace torch::cuda::lms
