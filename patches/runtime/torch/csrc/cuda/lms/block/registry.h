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

// The managed storages of one device: their blocks, their owners, and the reasons why blocks have
// to stay on the device. Used under the LMS mutex.
class Registry {
 public:
  // Is told about new blocks, and when a block's storage was freed. Called with the mutex held.
  class Listener {
   public:
    // The block's storage has just been allocated.
    virtual void born(Block& block) = 0;

    // The block has been removed from the registry. The listener has to delete it.
    virtual void died(Block* block) noexcept = 0;

   protected:
    ~Listener() = default;
  };

  Registry(Pager& pager, Listener& listener, const Native& native, Policy& policy, Stats& stats)
      : pager_(pager),
        listener_(listener),
        native_deleter_(native.deleter()),
        policy_(policy),
        stats_(stats) {}
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // The block of a storage, or null if it is not managed.
  static Block* block_of(c10::StorageImpl& storage);

  // Whether the memory was allocated by the native allocator. LMS can manage no other memory.
  bool is_native(const at::DataPtr& memory) const;

  // Smaller storages, of any size that the user asks for, are not managed. Among them are those
  // that CUDA graphs keep to themselves: the seeds of random operators, of 8 bytes, are allocated
  // before a capture begins, and no captured operator has them as an input.
  static constexpr size_t kLeast = 16; // bytes

  // Puts memory of the native allocator under management, and returns the storage's new DataPtr.
  at::DataPtr own(at::DataPtr memory, size_t bytes, c10::cuda::CUDAStream home);

  // Does the same for an existing storage. The stream on which it was allocated is unknown.
  Block* adopt(c10::StorageImpl& storage);

  // The opposite: the DataPtr becomes the native allocator's own. The block's memory has to be on
  // the device.
  static void disown(Block& block, at::DataPtr& held);

  // Called when an operator has used the storage. From then on its block can be moved.
  void claim(Block& block, c10::StorageImpl& storage);

  // Changes the address in the storage's DataPtr. hide() takes it away, and lets every access throw
  // this message until show() is called.
  static void place(Block& block, c10::StorageImpl& storage, void* data);
  static void hide(Block& block, c10::StorageImpl& storage, const char* why);
  static void show(Block& block, c10::StorageImpl& storage);

  // The block whose memory starts at this address; null if there is none.
  Block* find(const void* address) const;

  // All blocks. Returns a copy, because the caller may pause the mutex while it iterates. Blocks
  // without a reason to stay may have been deleted after a pause.
  std::vector<Block*> blocks() const {
    return {blocks_.begin(), blocks_.end()};
  }
  template <class F>
  void each(F f) const {
    for (Block* const block : blocks_) {
      f(*block);
    }
  }

  // Adds or removes a reason for the block to stay on the device. When the last reason is removed,
  // the policy may choose the block, and a block in state Freed is deleted.
  void stay(Block& block, Reason reason);
  void leave(Block& block, Reason reason);

  // Whether the block is used by operators of the calling thread alone, and stays for no other
  // reason. At the beginning of an operator, all that the thread has issued for it is queued.
  static bool only_this_thread_uses(const Block& block);

  // Lets the policy choose the block from now on, unless there is a reason for it to stay.
  void offer(Block& block);

  // Called by the deleter of the storage's DataPtr: the storage was freed, or has other memory now.
  static void deleter(void* context);

 private:
  static void bury(void* context);

  Pager& pager_;
  Listener& listener_;
  const c10::DeleterFnPtr native_deleter_;
  Policy& policy_;
  Stats& stats_;
  std::unordered_set<Block*> blocks_;
};

// Keeps a block on the device for a scope, as an operator does, and does not count as one. The
// mutex may be paused meanwhile.
class Stay {
 public:
  Stay(Registry& registry, Block& block) : registry_(registry), block_(block) {
    registry_.stay(block_, Reason::Lms);
  }
  ~Stay() {
    registry_.leave(block_, Reason::Lms);
  }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;

 private:
  Registry& registry_;
  Block& block_;
};

} // namespace torch::cuda::lms
