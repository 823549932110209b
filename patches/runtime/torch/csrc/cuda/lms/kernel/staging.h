#pragma once

#include <torch/csrc/cuda/lms/codec/kernels.h>
#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/kernel/zeroed.h>
#include <torch/csrc/cuda/lms/stream/event.h>
#include <torch/csrc/cuda/lms/stream/relay.h>

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace torch::cuda::lms {

// Device memory by way of which packed bytes move in one direction, in pieces: the copy engine
// moves one while kernels work on the others. Kernels that read or write host memory themselves are
// slower while the other direction is in use, and make its copies slower
// (docs/results/2026-11-28-staging.md). Used under the LMS mutex, with the device current.
// Whoever destroys it has to wait for its streams first.
class Staging {
 public:
  // Takes a thousandth of the device's memory, and at most 115 MiB. Throws c10::Error if there is
  // none.
  Staging();

  // Whether the heads of a block of this many bytes have room.
  bool takes(size_t bytes) const;

  // How large the buffer for a block of this many bytes has to be for send().
  size_t buffer_bytes(size_t bytes) const;

  // Both move a block of this many bytes, of which `work` launches a kernel for each piece on the
  // stream of kernels. Copies take turns. Throw c10::Error; some pieces may be on their way then.

  // To the buffer, which is large enough. `share` is what will probably be left of a byte, and
  // `warps` how many each launch has. Ends on the stream of copies. Returns where the pieces
  // end in the buffer; behind that are chunks for which they had no room.
  struct Outbound {
    codec::Target heads;
    codec::Target chunks;
    codec::Piece piece;
    uint64_t* vectors; // 0 on the device
  };
  using Pack = std::function<void(const Outbound& piece)>;
  size_t send(
      size_t bytes,
      const HostBuffer& buffer,
      double share,
      size_t warps,
      cudaStream_t kernels,
      Relay& copies,
      const Pack& work);

  // From the first `end` bytes of the buffer. If that is several pieces, `find` launches a kernel
  // before that finds the chunks of each. Ends on the stream of kernels.
  struct Inbound {
    codec::Bytes heads;
    codec::Window window;
    const codec::Range* range; // null if there is only one piece
    uint32_t windows; // pieces of the block
  };
  using Find =
      std::function<void(codec::Bytes heads, codec::Windows windows, codec::Target ranges)>;
  using Unpack = std::function<void(const Inbound& piece)>;
  void bring(
      size_t bytes,
      const HostBuffer& buffer,
      size_t end,
      Relay& copies,
      cudaStream_t kernels,
      const Find& find,
      const Unpack& work);

 private:
  // A part of the memory. One piece is in it at a time.
  struct Slot {
    char* data = nullptr;
    Event full;
    Event free;
  };
  template <size_t count>
  struct Ring {
    std::array<Slot, count> slots;
    size_t turn = 0;

    Slot& next() {
      return slots[turn++ % count];
    }
  };

  size_t heads_room() const;
  size_t least_groups() const;

  const size_t piece_; // bytes
  const DeviceMemory memory_;
  Ring<2> heads_; // of two blocks, each followed by the counters or ranges of its pieces
  Ring<3> pieces_;
};

} // namespace torch::cuda::lms
