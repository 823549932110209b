#pragma once

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/block/policy.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/move/mover.h>
#include <torch/csrc/cuda/lms/room/attention.h>
#include <torch/csrc/cuda/lms/room/layout.h>
#include <torch/csrc/cuda/lms/room/pools.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

// Joins free memory that lies in pieces, by moving idle blocks on the device. That is as fast as
// the device's own memory. Without it, the native allocator fails: it waits for the device, returns
// all free memory to it, and takes it again. Then blocks are paged out, over the link. Used under
// the LMS mutex.
class Compactor {
 public:
  Compactor(
      c10::DeviceIndex device,
      const Native& native,
      Registry& registry,
      const Policy& policy,
      Mover& mover,
      Attention& attention,
      Pools& pools)
      : device_(device),
        native_(native),
        registry_(registry),
        policy_(policy),
        mover_(mover),
        attention_(attention),
        pools_(pools) {}
  Compactor(const Compactor&) = delete;
  Compactor& operator=(const Compactor&) = delete;

  // Whether blocks may move: not while LMS is being turned off or has just been turned on, and not
  // while a graph is captured. Both can change during a pause. Can pause the mutex.
  bool may_move() const {
    return attention_.settled() && !pools_.capturing();
  }

  // Makes it possible to serve a request of this number of bytes on the current stream: there is a
  // free piece that is large enough, or one that becomes so if the native allocator maps at most
  // `left` bytes of pages. Returns whether that is so. Moves nothing if it was so before. Pauses
  // the mutex. Does not throw.
  bool join(size_t bytes, size_t left);

  // After join() has failed: idle blocks to page out, so that it does not. `segments` is a snapshot
  // of the native allocator.
  std::vector<Block*>
  obstacles(const std::vector<compat::cca::SegmentInfo>& segments, size_t bytes, size_t left) const;

  // Moves all idle blocks, also those for whose transfers the program has to wait. For tests.
  // Pauses the mutex. Does not throw.
  void shuffle();

 private:
  // With `waits`, blocks move for whose transfers the stream has to wait, too.
  bool join(size_t bytes, size_t left, bool waits);
  bool movable(const Block& block, cudaStream_t stream) const;
  template <class F>
  Blocks idle(cudaStream_t stream, F wanted) const;
  bool settled(const Block& block, cudaStream_t stream) const;
  // Whether the block could be moved. With `to`, only there.
  bool move(Block& block, size_t to, c10::cuda::CUDAStream stream);

  const c10::DeviceIndex device_;
  const Native native_;
  Registry& registry_;
  const Policy& policy_;
  Mover& mover_;
  Attention& attention_;
  Pools& pools_;
};

} // namespace torch::cuda::lms
