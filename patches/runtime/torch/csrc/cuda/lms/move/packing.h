#pragma once

#include <torch/csrc/cuda/lms/base/settings.h>
#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/codec/choice.h>
#include <torch/csrc/cuda/lms/codec/totals.h>
#include <torch/csrc/cuda/lms/kernel/packer.h>
#include <torch/csrc/cuda/lms/kernel/staging.h>

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace torch::cuda::lms {

// Decides which blocks of one device go to the host compressed, and compresses them. Used under the
// LMS mutex, with the device current.
//
// Most blocks live for one iteration. So what is known of a block's data is kept for blocks like
// it: those with the same size and type of data, written last by the same operator.
class Packing {
 public:
  Packing(c10::DeviceIndex device, const Settings& settings)
      : settings_(settings), packer_(device) {}
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;

  // How the next host copy of the block has to be made. None: as it is, or it needs kernels that
  // are not there yet. unprepared() says which; None if there are none. The next two make them,
  // which waits for the device: make() is called without the mutex, in one thread at a time, and
  // made() with it.
  codec::Kind wanted(const Block& block);
  codec::Kind unprepared() const {
    return unprepared_;
  }
  void make(codec::Kind kind) noexcept;
  void made(codec::Kind kind) {
    packer_.made(kind);
    unprepared_ = codec::Kind::None;
    out_ = made_out_.get();
    in_ = made_in_.get();
  }

  // Whether compression is useful to the program, or is tried. Otherwise nothing is compressed,
  // unless the user has turned compression on.
  void useful(bool useful) {
    useful_ = useful;
  }

  // The program waits for transfers for much of its time.
  void hurry() {
    hurry_ = true;
  }
  // It does not, so they leave more of the GPU and of the link to the program, and are slower.
  // Page-outs do not move by way of device memory then: that lets transfers in both directions get
  // on, but a single one begins to arrive later. `out_rate` is that of copies to the host, in bytes
  // per second; 0 if it is not known.
  void take_time(double out_rate) {
    hurry_ = false;
    out_rate_ = out_rate;
  }

  // The next three are for a block whose host copy is packed, and has a hash: pack() sets it, and
  // unpack() compares it, and stops the device if it is another one. They throw c10::Error. Two of
  // them use both streams of a direction, and return the one on which they end. Copies wait for
  // kernels then, or kernels for copies.
  cudaStream_t pack(Block& block, codec::Hash hash, cudaStream_t kernels, Relay& copies);
  // Packs it again if *differs, on the device, is not 0.
  void repack(const Block& block, const uint32_t* differs, cudaStream_t stream);
  cudaStream_t
  unpack(const Block& block, codec::Hash hash, void* memory, Relay& copies, cudaStream_t kernels);

  // Whether the block's host copy holds these bytes, in host memory. Waits for the device: only for
  // tests.
  bool holds(const Block& block, const char* bytes);

  // Takes note of how far the block has shrunk, if its copy to the host has ended.
  void learn(Block& block);
  // The same for a block that has given up its buffer. Returns whether its copy had ended.
  bool learn(const Like& packed, const HostBuffer& buffer);
  // The block is about to be copied as it is.
  void copied(const Block& block);

  // How large the host buffer of a block has to be while it is packed, and how many bytes of it the
  // block will probably need afterwards.
  size_t most(const Block& block) const;
  size_t expected(const Block& block) const;

  // The time that a transfer takes, as a share of the time of a copy of all its bytes. 1 if the
  // block with this number in the iteration is not compressed, or if nothing is known of it.
  double share(const Origin& origin, size_t bytes, uint32_t slot) const;

  // How many bytes a copy would move in the time that the block's transfer takes while it is
  // packed, whether it shrinks or not; 0 if that is not known.
  size_t copy_bytes(const Block& block) const;

  // Forgets how far blocks have shrunk.
  void forget() {
    known_.clear();
  }

  const codec::Totals& totals() const {
    return totals_;
  }
  void reset_totals() {
    totals_.reset();
  }

  // Why some data is not compressed although it should be; empty if there is no reason.
  const std::string& trouble() const {
    return trouble_;
  }

 private:
  struct Hash {
    size_t operator()(const Like& like) const {
      const auto writer = reinterpret_cast<uintptr_t>(like.writer);
      const size_t same = (like.bytes * 31 + writer) * 31 + static_cast<size_t>(like.kind);
      return same * 31 + like.slot;
    }
  };
  struct Known {
    codec::Choice choice; // when to try again what does not shrink; only of any slot
    float left = 0; // bytes written per byte in the last round; 0 if not known
    size_t end = 0; // bytes of a host buffer, the most of the last rounds
  };

  static Like like(const Block& block) {
    return {block.size, block.origin.writer, block.origin.kind};
  }
  bool shrinks(const Known& known) const {
    return known.left > 0 && known.left <= most_left();
  }
  double most_left() const;
  // Null if nothing is known.
  const Known* known(const Like& like) const;
  const Known* known(const Block& block) const {
    return known(like(block).of(block.slot));
  }
  bool worth(const Block& block) const;
  // `few`, if nothing shrinks, and `most_few` are for when the program hardly waits for transfers.
  codec::Grid grid(const Known* known, double few, unsigned most_few) const;

  const Settings& settings_;
  Packer packer_;
  // By make(), to which they belong until made().
  std::unique_ptr<Staging> made_out_;
  std::unique_ptr<Staging> made_in_;
  // Null as long as there are none.
  Staging* out_ = nullptr;
  Staging* in_ = nullptr;
  Event waits_; // of kernels for a stream of copies
  std::unordered_map<Like, Known, Hash> known_;
  codec::Totals totals_;
  std::string trouble_;
  codec::Kind unprepared_ = codec::Kind::None;
  bool useful_ = false;
  bool hurry_ = true;
  double out_rate_ = 0; // only used without hurry
};

} // namespace torch::cuda::lms
