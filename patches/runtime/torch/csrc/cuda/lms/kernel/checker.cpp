#include <torch/csrc/cuda/lms/kernel/checker.h>

#include <torch/csrc/cuda/lms/kernel/error.h>

#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace torch::cuda::lms {

namespace {

constexpr size_t kTable = 4096; // slots
// Enough for several times the link's bandwidth.
constexpr unsigned kBlocksBeside = 32;
// As many as fit on the device.
constexpr unsigned kBlocksInLine = 4; // per multiprocessor
// Four blocks of 512 threads saturate the link. Most of the time there is nothing to restore.
constexpr unsigned kRestoreBlocks = 8;

// So many thread blocks, or one per tile.
unsigned at_most(unsigned blocks, size_t bytes) {
  return static_cast<unsigned>(
      std::min<size_t>((bytes + checksum::kTile - 1) / checksum::kTile, blocks));
}

} // namespace

Checker::Checker(c10::DeviceIndex device) : device_(device) {}

bool Checker::available() {
  if (!tried_) {
    make();
    made();
  }
  return module_ != nullptr;
}

void Checker::make() noexcept {
  if (!tried_) {
    load_once();
  }
  if (module_) {
    try {
      next_.reset(new Table{
          zeroed(kTable * sizeof(checksum::Slot)),
          zeroed_counts(kTable),
          std::vector<uint32_t>(kTable)});
    } catch (const std::exception&) {
      (void)cudaGetLastError();
    }
  }
}

void Checker::made() {
  tried_ = true;
  full_ = !next_;
  if (!next_) {
    return;
  }
  const size_t first = tables_.size() * kTable;
  free_.reserve(first + kTable); // so that give() cannot fail
  tables_.push_back(std::move(*next_));
  next_.reset();
  for (size_t i = kTable; i > 0; --i) {
    free_.push_back(static_cast<Slot>(first + i - 1));
  }
}

void Checker::load_once() noexcept {
  why_ = error_of([this] { load(); });
  if (!why_.empty()) {
    module_.reset(); // the counts stay, because to free them waits for the device
  }
}

void Checker::load() {
  int multiprocessors = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_));
  int same_address = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device_));
  TORCH_CHECK(
      same_address != 0, "LMS: this GPU cannot use registered host memory at its host address");
  multiprocessors_ = static_cast<unsigned>(std::max(multiprocessors, 1));
  changed_ = zeroed_counts(1);
  corrupted_ = zeroed_counts(1);
  const std::string text = checksum::source();
  auto module = std::make_unique<Module>(KernelSource{"checksum", text.c_str()});
  hash_ = module->kernel(checksum::kHash);
  check_ = module->kernel(checksum::kCheck);
  restore_ = module->kernel(checksum::kRestore);
  module_ = std::move(module);
}

void Checker::require() {
  TORCH_CHECK(available(), "LMS: the release check is not available on this GPU: ", why_);
}

Checker::Slot Checker::take() {
  require();
  if (!ready()) {
    make();
    made();
  }
  full_ = false; // the next call tries again
  TORCH_CHECK(!free_.empty(), "LMS: there is no device memory for more hashes");
  const Slot slot = free_.back();
  free_.pop_back();
  return slot;
}

void Checker::give(Slot slot) {
  free_.push_back(slot);
}

Checker::Counts Checker::zeroed_counts(size_t count) {
  PinnedMemory memory = pinned(count * sizeof(uint32_t));
  std::memset(memory.get(), 0, count * sizeof(uint32_t));
  return Counts(static_cast<uint32_t*>(memory.release()));
}

checksum::Slot* Checker::address(Slot slot) const {
  return static_cast<checksum::Slot*>(tables_[slot / kTable].slots.get()) + slot % kTable;
}

unsigned Checker::blocks(size_t bytes, Pace pace) const {
  return at_most(pace == Pace::InLine ? kBlocksInLine * multiprocessors_ : kBlocksBeside, bytes);
}

void Checker::hash(Slot slot, const void* data, size_t bytes, Pace pace, cudaStream_t stream) {
  require();
  if (bytes == 0) {
    return;
  }
  module_->launch(
      hash_,
      {blocks(bytes, pace), checksum::kThreads},
      stream,
      checksum::Bytes{static_cast<const char*>(data), bytes},
      address(slot));
}

void Checker::check(Slot slot, const void* data, size_t bytes, cudaStream_t stream) {
  require();
  if (bytes == 0) {
    return;
  }
  module_->launch(
      check_,
      {blocks(bytes, Pace::InLine), checksum::kThreads},
      stream,
      checksum::Bytes{static_cast<const char*>(data), bytes},
      address(slot),
      checksum::Report{tables_[slot / kTable].caught.get() + slot % kTable, changed_.get()});
}

codec::Hash Checker::of(Slot slot) const {
  return {address(slot), corrupted_.get()};
}

const uint32_t* Checker::differs(Slot slot) const {
  return &address(slot)->differs;
}

void Checker::restore(
    Slot slot,
    const void* data,
    size_t bytes,
    const HostBuffer& host,
    cudaStream_t stream) {
  require();
  const checksum::Bytes source{static_cast<const char*>(data), bytes};
  checksum::Parts parts{};
  const auto restore = [&] {
    if (parts.count > 0) {
      module_->launch(
          restore_,
          {at_most(kRestoreBlocks, bytes), checksum::kThreads},
          stream,
          source,
          static_cast<const checksum::Slot*>(address(slot)),
          parts);
      parts.count = 0;
    }
  };
  host.each(bytes, [&](char* part, size_t offset, size_t size) {
    parts.part[parts.count++] = {part, offset, size};
    if (parts.count == checksum::kParts) {
      restore();
    }
  });
  restore();
}

// The device first writes a count, and then `changed_`.
void Checker::look() {
  if (!tried_ || !changed_ || !__atomic_load_n(changed_.get(), __ATOMIC_ACQUIRE)) {
    return;
  }
  __atomic_exchange_n(changed_.get(), 0, __ATOMIC_ACQ_REL);
  for (size_t table = 0; table < tables_.size(); ++table) {
    const uint32_t* const counts = tables_[table].caught.get();
    for (size_t i = 0; i < kTable; ++i) {
      const uint32_t now = __atomic_load_n(counts + i, __ATOMIC_RELAXED);
      uint32_t& known = tables_[table].known[i];
      if (now != known) {
        caught_ += now - known;
        known = now;
        last_caught_ = static_cast<Slot>(table * kTable + i);
      }
    }
  }
}

} // namespace torch::cuda::lms
