#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/block/policy.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/move/mover.h>
#include <torch/csrc/cuda/lms/record/recorder.h>
#include <torch/csrc/cuda/lms/room/pools.h>
#include <torch/csrc/cuda/lms/room/room.h>

namespace torch::cuda::lms {

// What one device has: its blocks, who moves them, who makes room, and its pools; and what takes
// several of these. Everything needs the LMS mutex held by the caller, unless it says so.
class Pager : private Registry::Listener {
 public:
  Pager(
      c10::DeviceIndex device,
      const Settings& settings,
      compat::cca::CUDAAllocator* native,
      Attention& attention);
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  const c10::DeviceIndex device;
  Stats stats;
  Recorder recorder;
  Policy policy;
  Pools pools;
  Registry registry;
  Mover mover;
  Room room;

  // The block of a storage, which comes under management if it can: CUDA
  // memory of the native allocator, at least `smallest` bytes, in no pool.
  Block* adopt(c10::StorageImpl& storage, size_t smallest);

  // Gives the block a reason to stay. The bytes are brought to the device, and the host copy is not
  // believed any more: whoever has the address may write where no operator shows it.
  // Can pause the mutex. Throws c10::OutOfMemoryError.
  void keep(Block& block, Reason reason, c10::cuda::CUDAStream stream);

  // The reasons are gone. Work that no operator showed may be queued on any stream: waits for the
  // device when nothing else keeps the block. Pauses the mutex.
  void let_go(Block& block, std::initializer_list<Reason> reasons);

  // As keep(), without a reason to stay: for callers during whom nothing is paged out.
  void touch(Block& block, c10::cuda::CUDAStream stream);

  // The bytes cannot be brought: every access to the storage throws this.
  static void fail(Block& block, const std::string& message);

  // Pages in everything and forgets host copies, so that the storages work
  // without the guard. Can pause the mutex. Throws c10::OutOfMemoryError.
  void restore();

  // As restore(), for an operator that was counted and not seen. Does not throw:
  // what could not be brought throws when it is accessed.
  void bring_all();

  // LMS is being turned on. Waits for the device, whose memory was used unseen. Pauses the mutex.
  void enabled();

  // Begins to record what operators use, or ends it. The second waits for the device, and pauses
  // the mutex. Throws c10::Error.
  void start_recording();
  void stop_recording();

  void reset_peak_stats();
  void reset_accumulated_stats();

 private:
  void died(Block* block) noexcept override;

  const Native native_;
};

} // namespace torch::cuda::lms
