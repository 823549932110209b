#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/published.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

// The private pools of one device (of CUDA graphs and MemPool), and the captures that run. Memory
// from a pool is never managed: a graph replays its address, or the owner of the pool chose the
// memory. The class has its own mutex, because allocations ask it without the LMS mutex.
class Pools {
 public:
  // Whether an allocation on a stream goes to the pool. It depends on the thread that allocates, or
  // on what the stream captures.
  using Filter = std::function<bool(cudaStream_t)>;

  explicit Pools(c10::DeviceIndex device) : device_(device) {}
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // Allocations go to a pool from begin() to end(). A capture that failed may never call end().
  // begin() returns whether it is for a capture.
  bool begin(compat::MempoolId pool, Filter filter, c10::cuda::CUDAStream current);
  void end(compat::MempoolId pool);
  void released(compat::MempoolId pool);

  // Whether allocations of any thread may go to a pool at present.
  bool any() const {
    return any_;
  }
  // Whether an allocation of this thread on the stream goes to a pool at present.
  bool takes(cudaStream_t stream);

  // Keeps allocations of this thread on the stream out of pools for a scope: memory for what is
  // paged in or moved is not the pool's.
  class Outside {
   public:
    Outside(Pools& pools, const Native& native, cudaStream_t stream);
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
    ~Outside();

   private:
    const c10::DeviceIndex device_;
    const Native native_;
    std::vector<std::pair<compat::MempoolId, Filter>> left_;
  };

  // Whether any thread is capturing a graph on this device. Then only CUDA calls that do not end a
  // capture are allowed.
  bool capturing();

  // given() adds an address that a pool has handed out; taken_back() removes one that a pool no
  // longer has.
  void given(void* address);
  void taken_back(void* address);
  bool owns(void* address) const;

  // Called when LMS is turned on: notes which of the native allocator's segments already belong to
  // pools.
  void learn(const compat::cca::SnapshotInfo& snapshot);

 private:
  struct Active {
    compat::MempoolId pool;
    Filter filter;
    // The stream that was current at begin(); for a capture, its own stream.
    c10::cuda::CUDAStream stream;
    std::thread::id thread; // that called begin()
    bool capture; // only what is captured goes to the pool
    bool captured; // the stream was seen capturing
  };
  using Segments = std::map<size_t, size_t>; // start -> end
  bool look();
  Segments::const_iterator segment_of(const void* address) const;

  const c10::DeviceIndex device_;
  mutable std::mutex mutex_;
  std::list<Active> active_;
  Published<bool> any_{false}; // whether active_ is not empty
  std::unordered_set<void*> given_;
  Published<bool> gave_{false}; // whether a pool has ever handed out memory
  Segments segments_; // of pools from before LMS was turned on
};

} // namespace torch::cuda::lms
