#include <torch/csrc/cuda/lms/move/packing.h>

#include <torch/csrc/cuda/lms/kernel/pinned.h>
#include <torch/csrc/cuda/lms/stream/own_stream.h>

#include <algorithm>
#include <cstring>

namespace torch::cuda::lms {

namespace {

// What the kernels reach of the copy engine's rate, in bytes over the link. Measured on an H200
// with tests/gpu/codec.py: 47 to 50 of 55 GB/s for all data that shrinks.
constexpr double kLinkShare = 0.9;
// A block is packed if at most this share of it is left; otherwise the kernels are no faster than
// the copy engine. By way of device memory, the link moves nothing but what is left: with 0.9,
// Llama, whose AdamW has 0.86 left, takes 0.96 of the time that it takes with 0.8. Without, kernels
// reach kLinkShare alone, and less if the other direction is in use: fp32 with 0.86 left moves at
// 44 GB/s to the host and 31 back then, where copies have 50 and 47
// (docs/results/2026-11-28-both-directions.md, docs/results/2026-11-29-host-ahead.md).
constexpr double kMostLeft = 0.9;
constexpr double kMostLeftDirect = 0.8;
// Smaller blocks are copied as they are: a launch takes as long as the link needs for them.
constexpr size_t kSmallest = size_t(1) << 20; // bytes
// If there are more kinds of blocks, sizes change all the time, and what is known is of no use.
constexpr size_t kMostKnown = 65'536;
// What is kept of a buffer, as long as nothing is known: that of dense bfloat16.
constexpr double kFirstShare = 0.75;
// Blocks like each other differ a little. What does not fit is no error, but fragments memory.
constexpr double kMargin = 1.0 / 64;
// How fast the most of the last rounds is forgotten, in each round with less.
constexpr size_t kForget = 16;
// So many thread blocks, divided by what is left of a byte, and these numbers at least, let
// ResNet-50, ViT-L and Llama take the least time on an H200 where the link decides
// (docs/results/2026-11-28-thread-blocks.md). With half as many again, compute is slower there.
// Where the program hardly waits for transfers, it is slower with more than the second numbers.
// Kernels that pack keep to kPace then, and are faster beside convolutions and matrix products if
// they are half as many again (docs/results/2026-11-30-profile.md). What operators wait for comes
// back in a row, so kernels that unpack may slow them more, as long as they themselves are faster
// (docs/results/2026-11-30-hash.md).
constexpr double kThreadBlocks = 24;
constexpr unsigned kLeastBlocks = 24;
constexpr double kPacedThreadBlocks = 18;
constexpr double kUnpackingThreadBlocks = 20;
constexpr unsigned kLeastFewBlocks = 16;
constexpr unsigned kMostPackingBlocks = 32;
constexpr unsigned kMostUnpackingBlocks = 40;
// Their operators would wait for the stores of kernels that fill the link, see codec/pace.cpp. So
// kernels write this part of what copies could move. On an H200, operators are slower from 46 of 55
// GB/s on (docs/results/2026-11-29-beside.md). Copies for which the plan expects operators to wait
// make no exception: operators run after all, and lose more (docs/results/2026-11-30-link.md).
constexpr double kPace = 0.8;

} // namespace

codec::Kind Packing::wanted(const Block& block) {
  const Compression setting = settings_.compression;
  if (setting == Compression::Off || block.origin.kind == codec::Kind::None ||
      block.size > codec::kMostBytes) {
    return codec::Kind::None;
  }
  if (setting == Compression::Auto) {
    if (!useful_ || !block.packs || block.size < kSmallest || !worth(block)) {
      return codec::Kind::None;
    }
  }
  if (!packer_.ready(block.origin.kind)) {
    unprepared_ = block.origin.kind;
    return codec::Kind::None;
  }
  if (!packer_.available(block.origin.kind)) {
    trouble_ = packer_.why(block.origin.kind);
    return codec::Kind::None;
  }
  return block.origin.kind;
}

void Packing::make(codec::Kind kind) noexcept {
  packer_.make(kind);
  try {
    if (!made_out_) {
      made_out_ = std::make_unique<Staging>();
    }
    if (!made_in_) {
      made_in_ = std::make_unique<Staging>();
    }
  } catch (const c10::Error&) {
    (void)cudaGetLastError(); // kernels use host memory themselves, which is slower
  }
}

double Packing::most_left() const {
  return hurry_ && out_ && in_ ? kMostLeft : kMostLeftDirect;
}

codec::Grid Packing::grid(const Known* known, double few, unsigned most_few) const {
  const double left = known ? static_cast<double>(known->left) : 0;
  const double all = hurry_ ? kThreadBlocks : few; // if nothing shrinks
  const unsigned least = hurry_ ? kLeastBlocks : kLeastFewBlocks;
  const unsigned most = hurry_ ? codec::kMostBlocks : most_few;
  const auto wanted = left > 0 ? static_cast<unsigned>(all / left) : most;
  return {std::min(std::max(wanted, least), most)};
}

cudaStream_t Packing::pack(Block& block, codec::Hash hash, cudaStream_t kernels, Relay& copies) {
  const HostCopy& host = block.host;
  const Known* const known = this->known(block);
  const codec::Grid most = grid(known, kPacedThreadBlocks, kMostPackingBlocks);
  // A piece takes all the room that is expected, so blocks that may not shrink go without.
  const double left = known && shrinks(*known) ? static_cast<double>(known->left) : 0;
  block.host.unseen = Like{block.size, block.origin.writer, host.packed, block.slot};
  const Packer::Transfer transfer{host.packed, block.memory.get(), block.size, host.buffer, hash};
  if (hurry_ && out_ && left > 0 && Packer::fits(transfer.data, block.size, host.buffer, *out_)) {
    block.host.pieces = packer_.pack(transfer, left, most, kernels, copies, *out_);
    return copies.stream();
  }
  const double rate = hurry_ ? 0 : kPace * out_rate_;
  block.host.pieces = 0;
  packer_.pack(transfer, most, rate, kernels);
  return kernels;
}

void Packing::repack(const Block& block, const uint32_t* differs, cudaStream_t stream) {
  packer_.repack(
      {block.host.packed, block.memory.get(), block.size, block.host.buffer, {}},
      differs,
      {codec::kMostBlocks},
      stream);
}

cudaStream_t Packing::unpack(
    const Block& block,
    codec::Hash hash,
    void* memory,
    Relay& copies,
    cudaStream_t kernels) {
  const HostCopy& host = block.host;
  const codec::Grid most = grid(known(block), kUnpackingThreadBlocks, kMostUnpackingBlocks);
  const Packer::Transfer transfer{host.packed, memory, block.size, host.buffer, hash};
  if (in_ && in_->takes(block.size)) {
    // The host is ahead of the device: what packs the block may not even have begun. If it does so
    // in one piece, what is left of the block will probably end before the buffer's spare.
    const bool packed = !host.touched || host.touched->done();
    const size_t end = host.pieces != 0 ? host.pieces : host.buffer.size() - host.spare;
    packer_.unpack(transfer, packed ? 0 : end, most, copies, kernels, *in_);
  } else {
    waits_.record(copies.stream());
    waits_.block(kernels);
    packer_.unpack(transfer, most, kernels);
  }
  return kernels;
}

bool Packing::holds(const Block& block, const char* bytes) {
  const PinnedMemory memory = pinned(block.size);
  const OwnStream stream;
  packer_.unpack(
      {block.host.packed, memory.get(), block.size, block.host.buffer, {}},
      {kMostUnpackingBlocks},
      stream);
  C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return std::memcmp(memory.get(), bytes, block.size) == 0;
}

void Packing::learn(Block& block) {
  if (block.host.unseen && learn(*block.host.unseen, block.host.buffer)) {
    block.host.unseen.reset();
  }
}

bool Packing::learn(const Like& packed, const HostBuffer& buffer) {
  const uint64_t written = Packer::written(buffer);
  if (written == 0) {
    return false;
  }
  totals_.add(packed.kind, packed.bytes, written);
  if (known_.size() >= kMostKnown) {
    known_.clear();
  }
  const double left = static_cast<double>(written) / static_cast<double>(packed.bytes);
  const auto note = [&](Known& known) {
    known.left = static_cast<float>(left);
    known.end = std::max(Packer::end(buffer), known.end - known.end / kForget);
  };
  Known& own = known_[packed];
  Known& any = known_[packed.of(0)];
  const bool shrank = left <= most_left();
  // Blocks that shrank before, and still do, say nothing about those that did not.
  if (packed.slot == 0 || !shrinks(own) || !shrank) {
    any.choice.packed(shrank);
  }
  note(any);
  if (packed.slot != 0) {
    note(own);
  }
  return true;
}

void Packing::copied(const Block& block) {
  const auto any = known_.find(like(block));
  if (any != known_.end()) {
    any->second.choice.copied();
  }
}

// Whether the block should be packed. Each block of an iteration is tried once. Of those that did
// not shrink, one is tried again now and then, whichever comes first.
bool Packing::worth(const Block& block) const {
  const auto own = known_.find(like(block).of(block.slot));
  if (block.slot != 0 && (own == known_.end() || shrinks(own->second))) {
    return true;
  }
  const auto any = known_.find(like(block));
  return any == known_.end() || any->second.choice.pack();
}

size_t Packing::most(const Block& block) const {
  return out_ ? out_->buffer_bytes(block.size) : codec::buffer_bytes(block.size);
}

size_t Packing::expected(const Block& block) const {
  const size_t most = this->most(block);
  const Known* const known = this->known(block);
  const double bytes = known ? (1 + kMargin) * static_cast<double>(known->end)
                             : kFirstShare * static_cast<double>(most);
  return std::min(most, static_cast<size_t>(bytes));
}

double Packing::share(const Origin& origin, size_t bytes, uint32_t slot) const {
  if (settings_.compression == Compression::Off || origin.kind == codec::Kind::None) {
    return 1;
  }
  const Known* const known = this->known(Like{bytes, origin.writer, origin.kind}.of(slot));
  if (!known || !shrinks(*known)) {
    return 1;
  }
  return std::min(1.0, static_cast<double>(known->left) / kLinkShare);
}

size_t Packing::copy_bytes(const Block& block) const {
  const Known* const known = this->known(block);
  const double share = known ? static_cast<double>(known->left) / kLinkShare : 0;
  return static_cast<size_t>(share * static_cast<double>(block.size));
}

const Packing::Known* Packing::known(const Like& like) const {
  auto found = known_.find(like);
  found = found == known_.end() ? known_.find(like.of(0)) : found;
  return found == known_.end() ? nullptr : &found->second;
}

} // namespace torch::cuda::lms
