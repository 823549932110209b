#pragma once

#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/kernel/checksum.h>
#include <torch/csrc/cuda/lms/kernel/module.h>
#include <torch/csrc/cuda/lms/kernel/pinned.h>
#include <torch/csrc/cuda/lms/kernel/zeroed.h>

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::cuda::lms {

// The release check of one device. A block's bytes are hashed before they are copied to the host,
// and hashed again before its memory is given up. If the hashes differ, the block was written
// without being seen, and its bytes are copied to the host buffer. All of this runs in stream
// order, and the host does not wait. Used under the LMS mutex, with the device current. The
// destructor frees device memory, which waits for the device, so kernels that were launched finish
// first.
class Checker {
 public:
  explicit Checker(c10::DeviceIndex device);
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // Whether available() and take() have what they need. Otherwise they make it, which waits for the
  // device. A caller that must not wait calls make() before, without the mutex, in one thread at a
  // time, and then made() with the mutex.
  bool ready() const {
    return tried_ && (!module_ || !free_.empty() || full_);
  }
  void make() noexcept;
  void made();

  // The first call compiles and loads the kernels. If that fails, it is not tried again. Never
  // throws.
  bool available();
  // One line that says why the check is not available; empty if it is. Call available() before.
  const std::string& why() const {
    return why_;
  }

  // Identifies the expected hash of one block's bytes. It keeps this hash between calls, so a
  // second check() does not need another hash().
  using Slot = uint32_t;
  // Throws c10::Error if there is no device memory for more slots.
  Slot take();
  // Kernels that use the slot may still be in flight, if the work of its next owner is ordered
  // after them.
  void give(Slot slot);

  // Beside other work of the device, which goes on meanwhile, or in line with work that waits for
  // it.
  enum class Pace { Beside, InLine };

  // From now on, in the order of the stream, the hash of these bytes is expected.
  void hash(Slot slot, const void* data, size_t bytes, Pace pace, cudaStream_t stream);

  // check() looks whether the bytes have another hash than expected, and expects it from now on.
  // restore() follows on the same stream. If there was a difference, it copies the bytes to the
  // host buffer. If one of them throws, the buffer may lack the bytes while the slot already
  // expects their hash: call hash() and copy again.
  void check(Slot slot, const void* data, size_t bytes, cudaStream_t stream);
  void
  restore(Slot slot, const void* data, size_t bytes, const HostBuffer& host, cudaStream_t stream);
  // For a host buffer with another content: not 0, on the device, if the last check() of the slot
  // found a difference.
  const uint32_t* differs(Slot slot) const;

  // For kernels that hash what they pack, and compare what comes back: with another hash than
  // expected, the device stops with an error, and corrupted() returns true.
  codec::Hash of(Slot slot) const;
  bool corrupted() const {
    return tried_ && corrupted_ && __atomic_load_n(corrupted_.get(), __ATOMIC_ACQUIRE) != 0;
  }

  // How many checks have found a difference so far. Checks on streams for which the host has not
  // waited may be missing.
  uint64_t caught() {
    look();
    return caught_;
  }
  // The slot of the last check that caught() counted.
  Slot last_caught() const {
    return last_caught_;
  }

 private:
  using Counts = std::unique_ptr<uint32_t, PinnedFree>;
  struct Table {
    DeviceMemory slots; // checksum::Slot
    Counts caught; // for each slot, counted by the device
    std::vector<uint32_t> known; // the counts that look() has seen
  };

  void load();
  void load_once() noexcept;
  void require();
  void look();
  static Counts zeroed_counts(size_t count);
  checksum::Slot* address(Slot slot) const;
  unsigned blocks(size_t bytes, Pace pace) const;

  const c10::DeviceIndex device_;
  bool tried_ = false; // until then, all that load() makes belongs to make()
  std::string why_;
  std::unique_ptr<Module> module_;
  Module::Kernel hash_ = nullptr;
  Module::Kernel check_ = nullptr;
  Module::Kernel restore_ = nullptr;
  unsigned multiprocessors_ = 0;
  Counts changed_;
  Counts corrupted_;
  uint64_t caught_ = 0;
  Slot last_caught_ = 0;
  std::unique_ptr<Table> next_; // of make()
  bool full_ = false; // make() has found no device memory for the next table
  std::vector<Table> tables_; // of kTable slots each
  std::vector<Slot> free_;
};

} // namespace torch::cuda::lms
