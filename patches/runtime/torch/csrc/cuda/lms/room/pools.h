#pragma once

#include <torch/csrc/cuda/lms/base/published.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <unordered_set>

namespace torch::cuda::lms {

// The private pools (of CUDA graphs, MemPool) that one device allocates from, and the captures that
// run. What a pool gives is never managed: a graph replays its address, or the pool's owner chose
// the memory. Has a mutex of its own, because allocations ask it without the LMS mutex.
class Pools {
 public:
  // Whether an allocation on a stream goes to the pool: in which thread it is made, or what the
  // stream captures.
  using Filter = std::function<bool(cudaStream_t)>;

  explicit Pools(c10::DeviceIndex device) : device_(device) {}
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // Allocation goes to a pool between the two. A capture that failed may never
  // end its pool.
  void begin(compat::MempoolId pool, Filter filter, c10::cuda::CUDAStream current);
  void end(compat::MempoolId pool);
  void released(compat::MempoolId pool);

  // Whether allocations of any thread may go to a pool now.
  bool any() const {
    return any_;
  }
  // Whether an allocation of this thread on the stream goes to a pool now.
  bool takes(cudaStream_t stream);

  // Whether a graph of this device is being captured, by whichever thread. Only CUDA calls that do
  // not end a capture are allowed then.
  bool capturing();

  // Addresses that a pool has given, and those that it has no longer.
  void given(void* address);
  void taken_back(void* address);
  bool owns(void* address) const;

  // When LMS is turned on: which of the native allocator's segments belong to pools already.
  void learn(const compat::cca::SnapshotInfo& snapshot);

 private:
  struct Active {
    compat::MempoolId pool;
    Filter filter;
    c10::cuda::CUDAStream stream; // current when it began: a capture's own
    bool captured; // it has been seen to capture
  };
  bool look();

  const c10::DeviceIndex device_;
  mutable std::mutex mutex_;
  std::list<Active> active_;
  Published<bool> any_{false}; // of active_
  std::unordered_set<void*> given_;
  Published<bool> gave_{false}; // once
  std::map<size_t, size_t> segments_; // of pools older than LMS: start -> end
};

} // namespace torch::cuda::lms
