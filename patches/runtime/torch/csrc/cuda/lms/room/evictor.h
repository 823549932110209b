#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/block/policy.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/move/mover.h>
#include <torch/csrc/cuda/lms/room/attention.h>
#include <torch/csrc/cuda/lms/room/compactor.h>
#include <torch/csrc/cuda/lms/room/pools.h>

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

// Pages out idle blocks of one device: those that Policy chooses, or those whose memory, together
// with free memory beside it, serves a request. Used under the LMS mutex, which every function that
// pages out can pause, unless a comment says otherwise. None throws.
class Evictor {
 public:
  Evictor(
      c10::DeviceIndex device,
      const Native& native,
      Registry& registry,
      Policy& policy,
      Mover& mover,
      Attention& attention,
      Pools& pools,
      const Compactor& compactor)
      : device_(device),
        native_(native),
        registry_(registry),
        policy_(policy),
        mover_(mover),
        attention_(attention),
        pools_(pools),
        compactor_(compactor) {}
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  // The block to page out when this number of bytes is missing; null if none is idle.
  Block* victim(size_t missing) const;

  // Waits before it returns Busy or Unfinished. The caller then has to choose a victim again,
  // because the block may have been deleted.
  Mover::Outcome page_out(Block& block);

  // Pages out the block if it is idle and that needs no wait. Returns whether it did. Does not
  // pause the mutex.
  bool drop(Block& block);

  // Pages out idle blocks until this number of bytes is paged out. Returns the number of bytes.
  size_t reclaim(size_t bytes);

  // The next four return whether they have paged out anything. They page out one block that is
  // large enough for a request of this number of bytes;
  bool reclaim_one(size_t bytes);
  // what has to give back pages to the device, of which `left` bytes may still be mapped;
  bool reclaim_pages(size_t bytes, size_t left);
  // what keeps Compactor from joining free memory;
  bool reclaim_obstacles(size_t bytes, size_t left);
  // and blocks that lie side by side.
  bool reclaim_neighbours(size_t bytes);

 private:
  Mover::Outcome try_page_out(Block& block);
  template <class F>
  bool reclaim_chosen(F choose);

  const c10::DeviceIndex device_;
  const Native native_;
  Registry& registry_;
  Policy& policy_;
  Mover& mover_;
  Attention& attention_;
  Pools& pools_;
  const Compactor& compactor_;
};

} // namespace torch::cuda::lms
