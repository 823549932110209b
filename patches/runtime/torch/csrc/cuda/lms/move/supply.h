#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/block/registry.h>
#include <torch/csrc/cuda/lms/host/arena.h>
#include <torch/csrc/cuda/lms/move/hashes.h>
#include <torch/csrc/cuda/lms/move/packing.h>
#include <torch/csrc/cuda/lms/move/slots.h>

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace torch::cuda::lms {

// What the page-outs of one device need: pinned host memory for the blocks' bytes, hashes, and
// kernels. Nothing here waits for the device while the LMS mutex is held: what is missing is made
// in provide(). Used under the LMS mutex, with the device current.
class Supply {
 public:
  Supply(c10::DeviceIndex device, const Settings& settings, Registry& registry)
      : device_(device),
        registry_(registry),
        arena_(device, settings),
        hashes_(device),
        packing_(device, settings),
        slots_(arena_) {}
  Supply(const Supply&) = delete;
  Supply& operator=(const Supply&) = delete;

  // Takes what a copy of the block to the host needs, or, with `release`, what giving up its device
  // memory needs. Returns false if something is missing. Throws c10::Error.
  bool take(Block& block, bool release);

  // Makes what take() lacked: kernels, or more pinned host memory; or waits for work after which
  // more of it is free. Pauses the mutex. Throws c10::Error if the host has no memory left.
  void provide();

  // The block's host copy is not needed any more, or not true any more.
  void drop(Block& block);
  // Drops host copies of blocks that are on the device until this number of bytes is dropped.
  void drop_clean_copies(size_t bytes);

  // Called when page-outs are likely soon: makes what they need while there is still memory for it.
  // Both return whether they have paused the mutex.
  bool prepare() {
    arena_.prepare();
    return prepare_kernels();
  }
  bool prepare_kernels();

  // Whether LMS can find unseen writes; why_no_checks() returns the reason if it cannot. Call
  // prepare_kernels() before.
  bool checks() {
    return hashes_.checker().available();
  }
  const std::string& why_no_checks() const {
    return hashes_.checker().why();
  }

  // reserve() pins host memory until there is at least this number of bytes, and returns how many
  // bytes are pinned. trim() unpins what is not in use, and returns how many bytes it unpinned. It
  // waits for copies. Both pause the mutex.
  size_t reserve(size_t bytes);
  size_t trim();

  void reset_peak_stats() {
    arena_.reset_peak();
    slots_.reset_peak();
  }
  void reset_accumulated_stats() {
    arena_.reset_accumulated();
    slots_.reset_accumulated();
    hashes_.reset();
    packing_.reset_totals();
  }

  const Arena& arena() const {
    return arena_;
  }
  Hashes& hashes() {
    return hashes_;
  }
  Packing& packing() {
    return packing_;
  }
  const Packing& packing() const {
    return packing_;
  }
  Slots& slots() {
    return slots_;
  }
  const Slots& slots() const {
    return slots_;
  }

 private:
  bool prepared() const;
  bool give_up_copies(size_t bytes);
  void make_kernels();
  bool extend(Block& block);
  void wait_for_copy();

  const c10::DeviceIndex device_;
  Registry& registry_;
  Arena arena_;
  Hashes hashes_;
  Packing packing_;
  Slots slots_;
  bool making_ = false; // whether a thread is in make_kernels()
};

} // namespace torch::cuda::lms
