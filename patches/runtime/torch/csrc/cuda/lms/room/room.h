#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/policy.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/move/mover.h>
#include <torch/csrc/cuda/lms/record/recorders.h>
#include <torch/csrc/cuda/lms/room/attention.h>
#include <torch/csrc/cuda/lms/room/compactor.h>
#include <torch/csrc/cuda/lms/room/evictor.h>
#include <torch/csrc/cuda/lms/room/limit.h>
#include <torch/csrc/cuda/lms/room/pages.h>
#include <torch/csrc/cuda/lms/room/planned.h>
#include <torch/csrc/cuda/lms/room/pools.h>
#include <torch/csrc/cuda/lms/room/steering.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch::cuda::lms {

// Makes room on one device: keeps the memory in use within the limit, and retries requests that
// failed. The LMS mutex must be held, unless a comment says otherwise.
class Room {
 public:
  Room(
      c10::DeviceIndex device,
      const Settings& settings,
      const Native& native,
      Pools& pools,
      Registry& registry,
      Policy& policy,
      Mover& mover,
      Stats& stats,
      Recorders& recorders,
      Attention& attention);
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  // Allocates memory for a new storage, which is managed if it is large enough. Takes the LMS mutex
  // itself. Throws c10::OutOfMemoryError with LMS's account of the memory.
  at::DataPtr allocate(size_t bytes);

  // Allocates memory that is not a storage (raw_alloc), and does not manage it. Such memory is
  // seldom large, except for workspaces of cuDNN. Takes the mutex itself. Throws
  // c10::OutOfMemoryError.
  void* allocate_raw(size_t bytes, cudaStream_t stream);

  // Pages the block in if necessary, and makes the stream wait for its arrival. The block must have
  // a reason to stay. Can pause the mutex. Throws c10::OutOfMemoryError.
  void bring(Block& block, c10::cuda::CUDAStream stream);

  // Whether storages may leave the device, as Compactor says it. Can pause the mutex.
  bool may_move() const {
    return compactor_.may_move();
  }

  // For plans: each starts what it says if that needs no wait and takes no memory from others, and
  // returns whether it did. copy_ahead() copies a block that may_copy() to the host, drop() pages
  // an idle one out, and prefetch() pages it in. prefetch() can pause the mutex. None throws.
  // may_copy() is for the thread whose operator begins: that one may use the block, and LMS learns
  // what it writes. What another thread's operator writes may not have been issued yet.
  bool may_copy(const Block& block) const;
  bool copy_ahead(Block& block);
  bool drop(Block& block) {
    return evictor_.drop(block);
  }
  bool prefetch(Block& block);

  // Who says where memory for blocks has to be; null for nobody.
  void follow(Planned* planned) {
    planned_ = planned;
  }
  // Pages out all that is idle, and returns the address of so many free bytes side by side; 0 if
  // there are none. With `exceeds`, the limit gives way to them, until this is called again. Waits
  // for the device, and pauses the mutex. Does not throw.
  size_t lay_out(size_t bytes, bool exceeds);
  // What the bytes for lay_out() should be a multiple of: less would reserve as much. Pauses
  // the mutex.
  size_t page_size() const {
    return torch::cuda::lms::page_size(native_.snapshot().segments, device_);
  }
  // Bytes of the largest piece that lay_out() might have found.
  size_t largest_piece() {
    return limit_.cap().largest(reserved_bytes());
  }

  // Pages out idle blocks until this number of bytes is paged out; by default all of them. Returns
  // the number of bytes. Can pause the mutex.
  size_t reclaim(size_t bytes = SIZE_MAX) {
    return evictor_.reclaim(bytes);
  }

  Limit& limit() {
    return limit_;
  }

  // Memory that the native allocator has reserved and that is not in use, in bytes. Can pause the
  // mutex.
  struct Free {
    int64_t all;
    int64_t largest; // the largest request that this memory can serve
  };
  Free free_bytes();

  // Bytes that an operator can get if all idle blocks are paged out. Can pause the mutex.
  size_t obtainable_bytes();

  // Bytes that the native allocator has handed out, except memory in limbo. Pauses the mutex.
  size_t in_use();

  // How many requests have failed at first, also within the native allocator, which then returned
  // its free memory to the device, or would have failed because free memory was in pieces that
  // moves alone could not join. Pauses the mutex.
  int64_t failures() {
    return stats_.out_of_memory_retries + native_.stats(device_).num_alloc_retries + in_pieces_;
  }

  // Bytes of device memory that could be paged out at present.
  size_t idle_bytes() const {
    return policy_.bytes();
  }

  // Called when an operator got no memory for a request of this size, but ended without an error.
  // Takes the mutex.
  void went_on(size_t bytes, const char* op);

  // Called when an operator failed. If the device is full, the reason may be that a library got no
  // memory from the driver. Then this makes room and empties the native allocator's cache. Takes
  // the mutex; does not throw.
  void operator_failed(const char* op);

  // A paragraph for an error message.
  std::string account(size_t bytes, const char* op) const;

 private:
  enum class Effort { Pages, OneBlock, Neighbours, Bytes, Everything, Limbo, Cache, Limit, None };

  // A request to the native allocator, which may be retried several times.
  struct Request {
    const size_t bytes;
    Source source = Source::FreeList;
    Effort effort = Effort::Pages; // what to try next
    uint64_t cap = 0; // Cap::changes() before the native allocator was last called
    // Retries left while a limit is set, although the limit does not stop the request.
    int again = 4;
  };

  // What the native allocator has, in bytes.
  struct Usage {
    size_t allocated;
    size_t reserved;
  };

  int make_room(size_t bytes);
  void make_piece(size_t request, size_t reserved);
  at::DataPtr take(const Planned::Piece& piece);
  void prepares(cudaStream_t stream);
  void prepared(cudaStream_t stream);
  at::DataPtr take_now(const std::optional<Planned::Piece>& piece);
  bool vacate(const Planned::Piece& piece);
  at::DataPtr obtain(const Block& block);
  void fetch(Block& block);
  void check_not_captured(const Block& block);
  template <class F>
  void fetch_into(Block& block, F obtain);
  bool has_room(size_t bytes);
  bool free_some(Request& request);
  void empty_cache();
  bool give_way(size_t bytes);
  void keep_spare();
  // A limit is set that the native allocator cannot enforce, so that LMS has to.
  bool keeps_to_limit() const;
  void keep_to_limit();
  // Returns if the request should be retried; otherwise throws the error with LMS's account.
  void retry(const c10::OutOfMemoryError& error, Request& request);
  void served(Source source);
  Usage usage();
  size_t reserved_bytes() {
    return usage().reserved;
  }
  size_t obtainable_from_device(size_t reserved) const;

  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  Pools& pools_;
  Registry& registry_;
  Policy& policy_;
  Mover& mover_;
  Stats& stats_;
  Recorders& recorders_;
  Attention& attention_;
  Limit limit_;
  Compactor compactor_;
  Evictor evictor_;
  Steering steering_;
  Planned* planned_ = nullptr;
  int64_t in_pieces_ = 0; // requests for which blocks that were in the way had to be paged out
  int64_t device_allocs_ = 0; // of the native allocator, when it was last asked
};

} // namespace torch::cuda::lms
