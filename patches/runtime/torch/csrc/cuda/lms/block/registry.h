#pragma once

#include <torch/csrc/cuda/lms/base/native.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/block/policy.h>
#include <torch/csrc/cuda/lms/compat/compat.h>

#include <cstddef>
#include <unordered_set>
#include <vector>

namespace torch::cuda::lms {

// The managed storages of one device: which there are, whose they are, and
// whether they have to stay. Under the LMS mutex.
class Registry {
 public:
  // Hears of the death of a block's storage, with the mutex held.
  class Listener {
   public:
    // The block is in no registry any more. The listener has it to delete.
    virtual void died(Block* block) noexcept = 0;

   protected:
    ~Listener() = default;
  };

  Registry(
      Pager& pager,
      Listener& listener,
      const Native& native,
      Policy& policy,
      Stats& stats,
      Recorder& recorder)
      : pager_(pager),
        listener_(listener),
        native_deleter_(native.deleter()),
        policy_(policy),
        stats_(stats),
        recorder_(recorder) {}
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // The block of a storage, or null if it is not managed.
  static Block* block_of(c10::StorageImpl& storage);

  // Whether memory is the native allocator's own, which LMS can manage.
  bool is_native(const at::DataPtr& memory) const;

  // Puts memory of the native allocator under management; its DataPtr then.
  at::DataPtr own(at::DataPtr memory, size_t bytes, c10::cuda::CUDAStream home);

  // The same for a storage that has it already; on which stream it was allocated is not known.
  Block* adopt(c10::StorageImpl& storage);

  // An operator has used the storage: from now on its block can be moved.
  void claim(Block& block, c10::StorageImpl& storage);

  // Gives the storage's DataPtr another address, or none.
  static void place(Block& block, c10::StorageImpl& storage, void* data);

  // The block whose memory begins at an address, or null.
  Block* find(const void* address) const;

  // All there are. A copy, because whoever goes through them may pause the mutex: those that are
  // not kept by a reason may be gone then.
  std::vector<Block*> blocks() const {
    return {blocks_.begin(), blocks_.end()};
  }
  template <class F>
  void each(F f) const {
    for (Block* const block : blocks_) {
      f(*block);
    }
  }

  // Adds or takes away a reason for a block to stay on the device. When none is left the policy may
  // choose it; a dead block is deleted then.
  void stay(Block& block, Reason reason);
  void leave(Block& block, Reason reason);

  // The block may be paged out from now on, if nothing keeps it.
  void offer(Block& block);

  // The storage is gone (or has other memory now). Called by the deleter of its DataPtr.
  static void deleter(void* context);

 private:
  static void bury(void* context);

  Pager& pager_;
  Listener& listener_;
  const c10::DeleterFnPtr native_deleter_;
  Policy& policy_;
  Stats& stats_;
  Recorder& recorder_;
  std::unordered_set<Block*> blocks_;
};

// Keeps a block where it is for a scope, as an operator does: the mutex may be paused in it.
class Stay {
 public:
  Stay(Registry& registry, Block& block) : registry_(registry), block_(block) {
    registry_.stay(block_, Reason::Operator);
  }
  ~Stay() {
    registry_.leave(block_, Reason::Operator);
  }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;

 private:
  Registry& registry_;
  Block& block_;
};

} // namespace torch::cuda::lms
