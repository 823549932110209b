#include <torch/csrc/cuda/lms/kernel/checker.h>

#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace torch::cuda::lms {

namespace {

constexpr size_t kTable = 4096; // slots
// Beside the compute that is queued: enough for several times the link's speed.
constexpr unsigned kHashBlocks = 32;
// In line with it, so as fast as can be: what a multiprocessor holds at a time.
constexpr unsigned kCheckBlocks = 4; // of each multiprocessor
// Four blocks of 512 threads fill the link. Mostly they have nothing to do.
constexpr unsigned kRestoreBlocks = 8;

// A stream of its own: to wait for it is to wait for nobody's work.
class Stream {
 public:
  Stream() {
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (cudaStreamDestroy(stream_) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }
  operator cudaStream_t() const {
    return stream_;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

} // namespace

// At process exit the driver may be gone: nothing can be done about it then.
void Checker::DeviceFree::operator()(checksum::Slot* slots) const {
  if (cudaFree(slots) != cudaSuccess) {
    (void)cudaGetLastError();
  }
}

void Checker::HostFree::operator()(checksum::Mailbox* mailbox) const {
  if (cudaFreeHost(mailbox) != cudaSuccess) {
    (void)cudaGetLastError();
  }
}

Checker::Checker(c10::DeviceIndex device) : device_(device) {}

bool Checker::available() {
  if (!tried_) {
    tried_ = true;
    try {
      load();
    } catch (const c10::Error& error) {
      why_ = error.what_without_backtrace();
    } catch (const std::exception& error) {
      why_ = error.what();
    }
    why_.resize(std::min(why_.size(), why_.find('\n')));
    if (!why_.empty()) {
      mailbox_.reset();
      module_.reset();
    }
  }
  return module_ != nullptr;
}

void Checker::load() {
  int multiprocessors = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_));
  int same_address = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device_));
  TORCH_CHECK(
      same_address != 0, "LMS: this GPU cannot write registered host memory by its own address");
  multiprocessors_ = static_cast<unsigned>(std::max(multiprocessors, 1));
  void* mailbox = nullptr;
  C10_CUDA_CHECK(cudaHostAlloc(
      &mailbox, sizeof(checksum::Mailbox), cudaHostAllocMapped | cudaHostAllocPortable));
  std::memset(mailbox, 0, sizeof(checksum::Mailbox));
  mailbox_.reset(static_cast<checksum::Mailbox*>(mailbox));
  auto module = std::make_unique<Module>(checksum::kSource);
  hash_ = module->kernel(checksum::kHash);
  check_ = module->kernel(checksum::kCheck);
  restore_ = module->kernel(checksum::kRestore);
  module_ = std::move(module);
}

void Checker::require() {
  TORCH_CHECK(available(), "LMS: there is no release check on this GPU: ", why_);
}

Checker::Slot Checker::take() {
  require();
  if (free_.empty()) {
    free_.reserve((tables_.size() + 1) * kTable); // so that give() cannot fail
    const size_t first = tables_.size() * kTable;
    tables_.push_back(allocate());
    for (size_t i = kTable; i > 0; --i) {
      free_.push_back(static_cast<Slot>(first + i - 1));
    }
  }
  const Slot slot = free_.back();
  free_.pop_back();
  return slot;
}

void Checker::give(Slot slot) {
  free_.push_back(slot);
}

// Zeroed before any stream can use it, which costs one wait for a fill.
Checker::Slots Checker::allocate() const {
  constexpr size_t bytes = kTable * sizeof(checksum::Slot);
  void* memory = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&memory, bytes));
  Slots slots(static_cast<checksum::Slot*>(memory));
  const Stream stream;
  C10_CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, stream));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return slots;
}

checksum::Slot* Checker::address(Slot slot) const {
  return tables_[slot / kTable].get() + slot % kTable;
}

unsigned Checker::blocks(size_t bytes, unsigned most) const {
  return static_cast<unsigned>(
      std::min<size_t>((bytes + checksum::kTile - 1) / checksum::kTile, most));
}

void Checker::hash(Slot slot, const void* data, size_t bytes, cudaStream_t stream) {
  require();
  if (bytes == 0) {
    return;
  }
  module_->launch(
      hash_,
      blocks(bytes, kHashBlocks),
      checksum::kThreads,
      stream,
      checksum::Bytes{static_cast<const char*>(data), bytes},
      address(slot));
}

void Checker::check(
    Slot slot,
    const void* data,
    size_t bytes,
    const HostBuffer& host,
    cudaStream_t stream) {
  require();
  if (bytes == 0) {
    return;
  }
  const checksum::Bytes source{static_cast<const char*>(data), bytes};
  module_->launch(
      check_,
      blocks(bytes, kCheckBlocks * multiprocessors_),
      checksum::kThreads,
      stream,
      source,
      address(slot),
      checksum::Report{mailbox_.get(), slot});

  checksum::Parts parts{};
  const auto restore = [&] {
    if (parts.count > 0) {
      module_->launch(
          restore_,
          blocks(bytes, kRestoreBlocks),
          checksum::kThreads,
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

// The device writes it: the slot, and then the count.
uint64_t Checker::caught() const {
  return mailbox_ ? __atomic_load_n(&mailbox_->caught, __ATOMIC_ACQUIRE) : 0;
}

Checker::Slot Checker::last_caught() const {
  return mailbox_ ? static_cast<Slot>(__atomic_load_n(&mailbox_->last, __ATOMIC_RELAXED)) : 0;
}

} // namespace torch::cuda::lms
