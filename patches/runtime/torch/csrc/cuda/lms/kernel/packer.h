#pragma once

#include <torch/csrc/cuda/lms/codec/kernels.h>
#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/kernel/module.h>
#include <torch/csrc/cuda/lms/kernel/pinned.h>
#include <torch/csrc/cuda/lms/kernel/staging.h>
#include <torch/csrc/cuda/lms/kernel/zeroed.h>

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace torch::cuda::lms {

// Packs blocks of one device into host memory and unpacks them, with the kernels of codec/. All of
// this runs in stream order, and the host does not wait. Used under the LMS mutex, with the device
// current. The destructor frees device memory, which waits for the device, so kernels that were
// launched finish first.
class Packer {
 public:
  explicit Packer(c10::DeviceIndex device);
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  // The first call for a kind compiles and loads its kernels, which takes seconds unless they are
  // in the cache, and tries them out. If that fails, it is not tried again. Never throws.
  bool available(codec::Kind kind);
  // Whether that call was made. A caller that must not wait calls make() instead, without the
  // mutex, in one thread at a time, and then made() with the mutex.
  bool ready(codec::Kind kind) const {
    return of(kind).tried;
  }
  void make(codec::Kind kind) noexcept;
  void made(codec::Kind kind) {
    of(kind).tried = true;
  }
  // One line that says why a kind is not available; empty while no reason is known.
  const std::string& why(codec::Kind kind) const {
    return of(kind).why;
  }

  // What the kernels work on: a block in device memory, and a buffer of host memory. For unpack(),
  // kind and bytes have to be those of pack().
  struct Transfer {
    codec::Kind kind;
    void* data;
    size_t bytes;
    const HostBuffer& buffer;
    codec::Hash hash; // of the block; pack() sets it, and unpack() compares it
  };

  // Whether the kernels can pack a block of this many bytes at this address into a buffer. The
  // buffer needs codec::buffer_bytes(bytes). It may have up to codec::kParts parts, because that
  // many are passed to a kernel.
  static bool fits(const void* data, size_t bytes, const HostBuffer& buffer);
  // The same if they pack by way of device memory.
  static bool
  fits(const void* data, size_t bytes, const HostBuffer& buffer, const Staging& staging);
  // Whether they can unpack what they packed into a buffer, which may have been cut off since.
  static bool holds(const Transfer& block);

  // Packs a block into the buffer, with at most these thread blocks, and writes at most `rate`
  // bytes per second; 0: as many as the link takes. What is packed one after the other has to be on
  // the same stream, or on streams that wait for each other. Throws c10::Error if the kind is not
  // available, if the block does not fit, or if the launch fails.
  void pack(const Transfer& block, codec::Grid most, double rate, cudaStream_t stream);

  // The same by way of device memory. The buffer needs staging.buffer_bytes(bytes). `share` is what
  // will probably be left of a byte. Ends on the stream of copies. Returns where the pieces end in
  // the buffer, for unpack().
  size_t pack(
      const Transfer& block,
      double share,
      codec::Grid most,
      cudaStream_t kernels,
      Relay& copies,
      Staging& staging);

  // Packs the block again if *differs, on the device, is not 0 by then, and needs the whole buffer
  // for what comes of it. Of the summary, written() stays that of pack(), and the hash stays as it
  // is. May run at the same time as other calls.
  void
  repack(const Transfer& block, const uint32_t* differs, codec::Grid most, cudaStream_t stream);

  // The reverse; the thread blocks may be others.
  void unpack(const Transfer& block, codec::Grid most, cudaStream_t stream);

  // The same by way of device memory. If what packed the block may not have finished yet, `pieces`
  // is what pack() returned, or how much of a buffer without pieces will probably be needed; if it
  // has, 0. Copies do not wait for the block's memory, but kernels. Ends on their stream.
  void unpack(
      const Transfer& block,
      size_t pieces,
      codec::Grid most,
      Relay& copies,
      cudaStream_t kernels,
      Staging& staging);

  // How many bytes pack() has written; 0 as long as it has not finished.
  static uint64_t written(const HostBuffer& buffer);
  // How many bytes of the buffer have to be kept. Valid when all that packs into it has finished.
  static size_t end(const HostBuffer& buffer);

 private:
  struct Kernels {
    bool tried = false; // until then, the rest belongs to make()
    std::string why;
    std::unique_ptr<Module> module;
    Module::Kernel pack = nullptr;
    Module::Kernel pack_piece = nullptr;
    Module::Kernel unpack = nullptr;
    Module::Kernel find = nullptr;
    Module::Kernel unpack_window = nullptr;
  };

  Kernels& of(codec::Kind kind) {
    return kernels_[static_cast<size_t>(kind)];
  }
  const Kernels& of(codec::Kind kind) const {
    return kernels_[static_cast<size_t>(kind)];
  }
  void load(codec::Kind kind);
  void try_out(codec::Kind kind);
  // With no tally, only if *only_if is not 0. `pace` is as for the kernel.
  void launch_pack(
      const Transfer& block,
      codec::Tally* tally,
      const uint32_t* only_if,
      uint64_t pace,
      codec::Grid most,
      cudaStream_t stream);
  // Does nothing if `beyond` is not 0, and nothing is behind so many bytes of the buffer by then.
  void launch_unpack(const Transfer& block, size_t beyond, codec::Grid most, cudaStream_t stream);
  const Kernels& required(codec::Kind kind, bool suited) const;
  codec::Tally* tally(size_t index) const {
    return static_cast<codec::Tally*>(tally_.get()) + index;
  }

  const c10::DeviceIndex device_;
  std::array<Kernels, codec::kKinds> kernels_;
  PinnedMemory sample_; // of try_out(); kept, because to free it waits for the device
  DeviceMemory tally_; // two codec::Tally: of pack(), and of try_out(), which may run meanwhile
};

} // namespace torch::cuda::lms
