#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/policy.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/move/mover.h>
#include <torch/csrc/cuda/lms/room/attention.h>
#include <torch/csrc/cuda/lms/room/limit.h>
#include <torch/csrc/cuda/lms/room/pools.h>

#include <cstdint>
#include <string>

namespace torch::cuda::lms {

// Makes room on one device: keeps what is in use within the limit, chooses who is paged out for
// whom, and tries again what failed. Needs the LMS mutex held, where it does not say otherwise.
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
      Attention& attention);
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  // Memory for a new storage, managed if it is large enough. Takes the LMS
  // mutex itself. Throws c10::OutOfMemoryError with LMS's account.
  at::DataPtr allocate(size_t bytes);

  // Memory that is no storage (raw_alloc): room is made for it if it does not fit, and that is all.
  // Takes the mutex itself.
  void* allocate_raw(size_t bytes, cudaStream_t stream);

  // The bytes are on the device and the stream is ordered behind their arrival. The block has a
  // reason to stay. Can pause the mutex. Throws c10::OutOfMemoryError.
  void bring(Block& block, c10::cuda::CUDAStream stream);

  // Pages out idle blocks, so many bytes or all; returns the bytes. Can pause the mutex.
  size_t reclaim(size_t bytes = SIZE_MAX);

  Limit& limit() {
    return limit_;
  }

  // Memory that the native allocator keeps and nobody uses, in bytes. Can pause the mutex.
  struct Free {
    int64_t all;
    int64_t largest; // the largest request that it serves
  };
  Free free_bytes();

  // Bytes that an operator can get, if everything idle is paged out. Can pause the mutex.
  size_t obtainable_bytes();

  // Bytes of device memory that could be paged out now.
  size_t idle_bytes() const {
    return policy_.bytes();
  }

  // An operator got no such memory and ended without an error all the same. Takes the mutex.
  void went_on(size_t bytes, const char* op);

  // An operator failed. If the device is full, a library may have got no memory from the driver:
  // makes room, and gives the cache back. Takes the mutex, does not throw.
  void operator_failed(const char* op);

  // One paragraph for an error message.
  std::string account(size_t bytes, const char* op) const;

 private:
  enum class Effort { OneBlock, Neighbours, Bytes, Everything, Limbo, Cache, Limit, None };

  // What the native allocator is asked for, again and again.
  struct Request {
    const size_t bytes;
    Source source = Source::FreeList;
    Effort effort = Effort::OneBlock; // the next one
    uint64_t cap = 0; // Cap::changes() when the native allocator was asked last
    int again = 4; // so often for the user's limit although what is reserved allows it
  };

  Block* victim(size_t missing) const;
  int make_room(size_t bytes);
  at::DataPtr obtain(size_t bytes);
  void fetch(Block& block, bool captured);
  Mover::Outcome page_out(Block& block);
  bool free_some(Request& request);
  bool reclaim_neighbours(size_t bytes);
  void empty_cache();
  bool give_way(size_t bytes);
  void keep_spare();
  // The native allocator does not know the user's limit, and one is set.
  bool keeps_to_limit() const;
  void keep_to_limit();
  // Returns when the request should be tried again; else throws the error with LMS's account.
  void retry(const c10::OutOfMemoryError& error, Request& request);
  void served(Source source);
  size_t in_use();
  size_t allocated_bytes();
  size_t reserved_bytes();

  const c10::DeviceIndex device_;
  const Settings& settings_;
  const Native native_;
  Pools& pools_;
  Registry& registry_;
  Policy& policy_;
  Mover& mover_;
  Stats& stats_;
  Attention& attention_;
  Limit limit_;
  int64_t device_allocs_ = 0; // of the native allocator, when it was asked last
};

} // namespace torch::cuda::lms
