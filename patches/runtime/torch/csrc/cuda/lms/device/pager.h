#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/policy.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/follow/follower.h>
#include <torch/csrc/cuda/lms/move/mover.h>
#include <torch/csrc/cuda/lms/record/recorders.h>
#include <torch/csrc/cuda/lms/room/pools.h>
#include <torch/csrc/cuda/lms/room/room.h>

#include <atomic>
#include <initializer_list>
#include <unordered_map>

namespace torch::cuda::lms {

// All parts of LMS for one device: its blocks, the mover, the room and the pools, and the functions
// that combine several of these. The caller must hold the LMS mutex, unless a comment says
// otherwise.
class Pager : private Registry::Listener {
 public:
  Pager(
      c10::DeviceIndex device,
      const Settings& settings,
      compat::cca::CUDAAllocator* native,
      c10::Allocator* tier,
      const c10::Allocator* before,
      Attention& attention);
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  const c10::DeviceIndex device;
  Stats stats;
  Recorders recorders;
  Policy policy;
  Pools pools;
  Registry registry;
  Mover mover;
  Room room;
  Follower follower;
  Recording recorded; // the user's last recording

  // What operators use, for the recordings. An operator with this number, unique in the process,
  // uses the block on the stream. Called before the block is brought. Can pause the mutex; does not
  // throw.
  bool recording() const {
    return recorders.users.on() || follower.on();
  }
  void
  uses(Block& block, bool write, c10::cuda::CUDAStream stream, uint64_t unit, const char* name);
  // An iteration has ended. Can pause the mutex; does not throw.
  void step(uint32_t optimizer);

  // The block of a storage. Adopts the storage if possible: it must be CUDA memory of the native
  // allocator, have at least `smallest` bytes, and not be from a private pool. Returns null
  // otherwise. For a slice of a storage, it is the block of the storage, which stays from then on.
  // Throws if that has been moved since.
  Block* adopt(c10::StorageImpl& storage, size_t smallest);

  // Ends the management of the storage that has this DataPtr: it becomes the native allocator's
  // own. Returns false if that is not possible: the memory is not on the device, or a graph is
  // captured. Waits for the device, and pauses the mutex. Throws c10::Error.
  bool disown(Block& block, at::DataPtr& held);

  // Gives the block a reason to stay and pages it in. Its host copy becomes invalid: the code that
  // has the address may write to it without being seen. Can pause the mutex. Throws
  // c10::OutOfMemoryError.
  void keep(Block& block, Reason reason, c10::cuda::CUDAStream stream);

  // Records that a stream uses the block in ways that operators do not show. Pauses the mutex.
  // Throws c10::Error.
  void record_stream(Block& block, c10::cuda::CUDAStream stream);

  // Removes the reasons. Unseen work may be queued on any stream, so this waits for the device if
  // no lasting reason is left. Pauses the mutex. If it cannot wait, it throws c10::Error, and the
  // block stays until it is released.
  void let_go(Block& block, std::initializer_list<Reason> reasons);

  // Like keep(), but without a reason to stay: for callers during which nothing is paged out.
  void touch(Block& block, c10::cuda::CUDAStream stream);

  // Called when the bytes cannot be paged in: every access to the storage throws this message.
  static void fail(Block& block, const std::string& message);

  // Pages in all blocks and drops their host copies, so that the storages work without the guard.
  // Can pause the mutex. Throws c10::OutOfMemoryError.
  void restore();

  // Like restore(), for an operator that was counted but not watched. Does not throw: storages that
  // could not be paged in throw when they are accessed.
  void bring_all();

  // Called when compat::readable has changed. Pauses the mutex.
  void update_access();

  // Called when LMS is turned on. Waits for the device, because unseen work may be using its
  // memory. Pauses the mutex.
  void enabled();

  // Called when a capture begins while LMS is off, and does not see what the graph will use. So all
  // that there is stays, as what LMS sees in a capture.
  void captured_unseen();
  // Memory that LMS does not manage need not stay for these reasons if it gets a block.
  void let_go(const void* memory, std::initializer_list<Reason> reasons);
  // Memory that stays already is held once more.
  void hold_again(const void* memory) {
    const auto stays = staying_.find(memory);
    if (stays != staying_.end()) {
      stays->second.add(Reason::Holder);
    }
  }
  // It was handed out anew while LMS is off: nobody has its address.
  void handed_out(const void* memory) {
    staying_.erase(memory);
    publish_staying();
  }
  // Whether handed_out() has to be called, for any device. Needs no mutex.
  static bool asks_for_memory() {
    return staying_anywhere_ > 0;
  }

  // Start and stop a recording of what operators use. stop_recording() waits for the device, and
  // pauses the mutex. Both throw c10::Error.
  void start_recording();
  void stop_recording();

  void reset_peak_stats();
  void reset_accumulated_stats();

 private:
  void resize_with_tier(c10::StorageImpl& storage) const;
  Block* adopt_sliced(c10::StorageImpl& storage, c10::StorageImpl& slice, size_t smallest);
  void publish_staying();
  void born(Block& block) override;
  void died(Block* block) noexcept override;

  const Native native_;
  // Memory that LMS does not manage, and why it has to stay if it gets a block: that of a block
  // that has stayed, and what was there when a graph was captured while LMS was off.
  std::unordered_map<const void*, Residency> staying_;
  bool published_ = false; // whether it is counted in staying_anywhere_
  static std::atomic<int> staying_anywhere_; // pagers with such memory
  c10::Allocator* const tier_;
  const c10::Allocator* const before_;
};

} // namespace torch::cuda::lms
