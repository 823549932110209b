#pragma once

#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/kernel/checksum.h>
#include <torch/csrc/cuda/lms/kernel/module.h>

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::cuda::lms {

// The release check of one device. A block's bytes are hashed before they are
// copied to the host, and hashed again before its memory is given up; where the
// hashes differ, something that LMS did not see has written the block, and its
// bytes go to the host buffer. All in the order of streams: the host waits for
// nothing.
// Used under the LMS mutex, with the device current. Outlives what it launched:
// when it is destroyed, its device memory is freed, which waits for the device.
class Checker {
 public:
  explicit Checker(c10::DeviceIndex device);
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // The first call compiles and loads the kernels, or finds that it cannot, for
  // good. Never throws.
  bool available();
  // One line; empty while nothing is known against it.
  const std::string& why() const {
    return why_;
  }

  // Names what is expected of one block's bytes. It keeps that between calls: to
  // check once more, no new hash() is needed.
  using Slot = uint32_t;
  // Throws c10::Error when there is no device memory for more of them.
  Slot take();
  // Kernels that use it may be in flight, if whatever its next owner does is
  // ordered behind them.
  void give(Slot slot);

  // What is expected from now on: these bytes, in the order of the stream.
  void hash(Slot slot, const void* data, size_t bytes, cudaStream_t stream);

  // Where the bytes are not what was expected, they go to the host buffer, and are
  // what is expected from now on. When it throws, the buffer may lack them, and the
  // slot may already expect them: hash and copy again.
  void
  check(Slot slot, const void* data, size_t bytes, const HostBuffer& host, cudaStream_t stream);

  // Checks that have found a difference until now: those on streams that the host
  // has not waited for may be missing.
  uint64_t caught() {
    look();
    return caught_;
  }
  // Of the one that caught() counted last.
  Slot last_caught() const {
    return last_caught_;
  }

 private:
  struct DeviceFree {
    void operator()(checksum::Slot* slots) const;
  };
  struct HostFree {
    void operator()(uint32_t* counts) const;
  };
  using Slots = std::unique_ptr<checksum::Slot, DeviceFree>;
  using Counts = std::unique_ptr<uint32_t, HostFree>;
  struct Table {
    Slots slots;
    Counts caught; // of each slot, by the device
    std::vector<uint32_t> known; // what was seen of them
  };

  void load();
  void require();
  void look();
  static Slots zeroed_slots();
  static Counts zeroed_counts(size_t count);
  checksum::Slot* address(Slot slot) const;
  unsigned blocks(size_t bytes, unsigned most) const;

  const c10::DeviceIndex device_;
  bool tried_ = false;
  std::string why_;
  std::unique_ptr<Module> module_;
  Module::Kernel hash_ = nullptr;
  Module::Kernel check_ = nullptr;
  Module::Kernel restore_ = nullptr;
  unsigned multiprocessors_ = 0;
  Counts changed_;
  uint64_t caught_ = 0;
  Slot last_caught_ = 0;
  std::vector<Table> tables_; // kTable slots each
  std::vector<Slot> free_;
};

} // namespace torch::cuda::lms
