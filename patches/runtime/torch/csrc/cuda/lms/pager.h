#pragma once

#include <torch/csrc/cuda/lms/arena.h>
#include <torch/csrc/cuda/lms/block.h>
#include <torch/csrc/cuda/lms/compat.h>
#include <torch/csrc/cuda/lms/headroom.h>
#include <torch/csrc/cuda/lms/policy.h>
#include <torch/csrc/cuda/lms/published.h>
#include <torch/csrc/cuda/lms/settings.h>
#include <torch/csrc/cuda/lms/stats.h>
#include <torch/csrc/cuda/lms/transfer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>

namespace torch::cuda::lms {

namespace cca = compat::cca;

// Moves the storages of one device between device and host memory.
// Everything but allocate() needs the LMS mutex held by the caller.
class Pager {
 public:
  Pager(c10::DeviceIndex device, const Settings& settings, cca::CUDAAllocator* native);

  // ---- the allocator tier ----

  // Memory for a new storage, managed if it is large enough. Takes the LMS
  // mutex itself. Throws c10::OutOfMemoryError with LMS's account.
  at::DataPtr allocate(size_t bytes);

  // Memory that is no storage (raw_alloc): room is made for it, and that is all.
  void* allocate_raw(size_t bytes, cudaStream_t stream);

  // Allocation goes to a private pool (graph capture, MemPool) between the two.
  // A capture that failed may never end its pool, but releases it.
  void pool_begins(compat::MempoolId pool);
  void pool_ends(compat::MempoolId pool);
  void pool_released(compat::MempoolId pool);

  // ---- storages ----

  // The block of a storage, or null if it is not managed.
  static Block* block_of(c10::StorageImpl& storage);

  // The block whose memory begins at an address, or null.
  Block* find(const void* address) const;

  // The block of a storage, which comes under management if it can: CUDA
  // memory of the native allocator, at least `smallest` bytes, in no pool.
  Block* adopt(c10::StorageImpl& storage, size_t smallest);

  // ---- use ----

  // While pinned, a block is not paged out. The bytes may be on the host still.
  void pin(Block& block);

  // The bytes are on the device and the stream is ordered behind their arrival.
  // The block is pinned or held. Throws c10::OutOfMemoryError.
  void bring(Block& block, c10::cuda::CUDAStream stream);

  // The operator may change the bytes: the host copy is no longer true.
  void wrote(Block& block);

  // The block stays on the device until unexport().
  void keep(Block& block);

  void unpin(Block& block);

  // A position on the stream for the uses of one operator, see Timeline.
  void used(Block& block, Timeline& timeline, uint64_t position);
  Timeline& timeline(c10::cuda::CUDAStream stream);

  void record_stream(Block& block, c10::cuda::CUDAStream stream);

  // Keeps the block on the device from now on, or no longer.
  void hold(Block& block, c10::cuda::CUDAStream stream);
  void release(Block& block);
  void export_address(Block& block, c10::cuda::CUDAStream stream);
  void unexport(Block& block);

  // The bytes cannot be brought: every access to the storage throws this.
  void fail(Block& block, const std::string& message);

  // ---- everything ----

  // Pages out idle blocks, so many bytes or all; returns the bytes.
  size_t reclaim(size_t bytes = SIZE_MAX);

  // Pages in everything and forgets host copies, so that the storages work
  // without the guard. Throws c10::OutOfMemoryError.
  void restore();

  // As restore(), for an operator that nobody shows and that must not wait. Does
  // not throw: what could not be brought throws when it is accessed.
  void bring_all();

  // Uses of this device's memory were not seen until now: wait for them.
  void synchronize();

  // LMS is being turned on. Waits for the device, whose memory was used unseen.
  void enabled();

  void limit_changed() {
    automatic_limit_ = 0;
    headroom_ = {};
  }
  size_t limit();
  bool capturing() const;
  bool under_pressure() const {
    return pressure_;
  }

  // Memory that the native allocator keeps and nobody uses, in bytes.
  struct Free {
    int64_t all;
    int64_t largest; // the largest request that it serves
  };
  Free free_bytes();

  // DistributedDataParallel will ask whether this storage is another's view. The
  // answer is in the storages' deleters, and to look there counts as access.
  void compared(Block& block, c10::StorageImpl& storage);

  // An operator got no such memory and ended without an error all the same.
  void went_on(size_t bytes, const char* op);

  // Bytes of device memory that could be paged out now.
  size_t idle_bytes() const {
    return policy_.bytes();
  }

  // One paragraph for an error message.
  std::string account(size_t bytes, const char* op) const;

  Stats& stats() {
    return stats_;
  }
  void reset_peak_stats();
  void reset_accumulated_stats();

  const Arena& arena() const {
    return arena_;
  }
  // Bytes of host memory: pins until there are so many, or unpins what is not
  // in use; returns what there is, or what was released.
  size_t reserve_host(size_t bytes);
  size_t trim_host();

  // The storage is gone (or has other memory now). Called by the deleter;
  // never throws.
  static void free(Block* block) noexcept;
  static void deleter(void* context);

 private:
  enum class Outcome {
    Moved,
    Gone, // dying, or owned by another storage now: no candidate any more
    Failed, // no host memory, or CUDA refused: the block is as it was
  };
  Outcome page_out(Block& block);
  bool start_page_out(Block& block, c10::StorageImpl& storage);
  void page_in(Block& block);
  void order(Block& block, cudaStream_t stream, bool captured);
  void permit(Block& block);
  void finish_collectives();
  void free_memory(Block& block);
  void wait_for_uses(Block& block);
  void drop_host(Block& block);
  bool drop_clean_copies(size_t bytes);
  HostBuffer take_host(size_t bytes);
  void verify(const Block& block);
  void idle(Block& block);
  void place(Block& block, c10::StorageImpl& storage, void* data);
  at::DataPtr own(at::DataPtr memory, size_t bytes);
  at::DataPtr obtain(size_t bytes);
  int make_room(size_t bytes);
  bool reclaim_for(size_t bytes, int& step, Source& source);
  bool reclaim_neighbours(size_t bytes);
  // Returns when the request should be tried again; else throws the error with
  // LMS's account.
  void retry(const c10::OutOfMemoryError& error, size_t bytes, int& step, Source& source);
  void served(Source source);
  bool in_pool(void* address) const;
  size_t allocated_bytes();

  const c10::DeviceIndex device_;
  const Settings& settings_;
  cca::CUDAAllocator* const native_;
  const c10::DeleterFnPtr native_deleter_;

  Transfer transfer_;
  Arena arena_;
  Policy policy_;
  Stats stats_;
  std::map<cudaStream_t, std::unique_ptr<Timeline>> timelines_;
  std::unordered_set<Block*> blocks_;
  std::unordered_set<void*> in_pool_; // addresses that a pool owns
  std::map<size_t, size_t> pool_segments_; // of pools older than LMS: start -> end

  std::map<compat::MempoolId, int> active_pools_; // begun and not ended
  Published<bool> pooling_{false}; // there are any
  Published<bool> pooled_{false}; // it did once
  size_t automatic_limit_ = 0; // bytes; 0 = not computed yet
  Headroom headroom_; // below it
  bool pressure_ = false; // something was paged out once
  int64_t device_allocs_ = 0;
  std::string trouble_; // why the last page-out failed
};

} // namespace torch::cuda::lms
