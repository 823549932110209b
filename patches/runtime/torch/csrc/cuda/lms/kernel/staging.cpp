#include <torch/csrc/cuda/lms/kernel/staging.h>

#include <torch/csrc/cuda/lms/host/copy.h>

#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <limits>

namespace torch::cuda::lms {

namespace {

constexpr size_t kPart = 4096; // of the device's memory, in a piece
constexpr size_t kLeastPiece = size_t(32) << 10; // bytes
// A kernel for a piece starts late, because compute's have all multiprocessors until some of them
// end. With 8 MiB, ViT-L took longer on an H200 than with 32 or 64, which are 0.6 and 1.2 ms of PCI
// Express 5.0 (docs/results/2026-11-28-staging.md).
constexpr size_t kMostPiece = size_t(32) << 20; // bytes
constexpr size_t kHeads = 4; // pieces have so many times the room of heads
constexpr size_t kGroupBytes = codec::kGroup * codec::kChunk;
// There are at most twice as many pieces as groups, each with a counter or a range.
constexpr size_t kGroupHeads = codec::kLine + 2 * sizeof(codec::Range); // bytes
static_assert(sizeof(codec::Range) == sizeof(uint64_t), "a counter takes as much");
// Blocks with the same operator and size differ a little. What has no room is written by kernels.
constexpr double kMargin = 1.0 / 64;

size_t piece_of_the_device() {
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const size_t piece = std::min(kMostPiece, total / kPart);
  return std::max(kLeastPiece, piece / kGroupBytes * kGroupBytes);
}

} // namespace

Staging::Staging()
    : piece_(piece_of_the_device()),
      memory_(zeroed(
          heads_.slots.size() * heads_room() + pieces_.slots.size() * (piece_ + codec::kChunk))) {
  char* next = static_cast<char*>(memory_.get());
  for (Slot& slot : heads_.slots) {
    slot.data = next;
    next += heads_room();
  }
  for (Slot& slot : pieces_.slots) {
    slot.data = next;
    next += piece_ + codec::kChunk;
  }
}

size_t Staging::heads_room() const {
  return piece_ / kHeads / codec::kLine * kGroupHeads;
}

bool Staging::takes(size_t bytes) const {
  return codec::groups(bytes) * kGroupHeads <= heads_room();
}

// A piece to the host has at least so many, unless the block ends in it: more than half of those
// that have room if nothing shrinks.
size_t Staging::least_groups() const {
  return std::max<size_t>(1, piece_ / kGroupBytes / 2);
}

// Each piece may leave less than a chunk of its room unused.
size_t Staging::buffer_bytes(size_t bytes) const {
  const size_t pieces = codec::groups(bytes) / least_groups() + 1;
  return codec::buffer_bytes(bytes) + pieces * codec::kChunk;
}

size_t Staging::send(
    size_t bytes,
    const HostBuffer& buffer,
    double share,
    size_t warps,
    cudaStream_t kernels,
    Relay& copies,
    const Pack& work) {
  const auto room = [&](size_t data) {
    const auto expected = static_cast<size_t>(share * (1 + kMargin) * static_cast<double>(data));
    return std::min(codec::chunks(expected) + 1, codec::chunks(data)) * codec::kChunk;
  };
  const size_t groups = codec::groups(bytes);
  // Whole rounds of all warps, if possible.
  size_t each = std::max<size_t>(1, piece_ / std::max(room(kGroupBytes), codec::kChunk));
  each -= each > warps ? each % warps : 0;
  const size_t each_bytes = std::min(each, groups) * kGroupBytes;
  const size_t pieces = (groups + each - 1) / each;
  const size_t last_bytes = bytes - (pieces - 1) * each_bytes;
  const size_t slots = codec::slots(bytes);
  const size_t beyond = slots + (pieces - 1) * room(each_bytes) + room(last_bytes);

  Slot& heads = heads_.next();
  heads.free.block(kernels);
  const size_t heads_bytes = groups * codec::kLine;
  auto* const vectors = reinterpret_cast<uint64_t*>(heads.data + heads_bytes);
  C10_CUDA_CHECK(cudaMemsetAsync(vectors, 0, pieces * sizeof(uint64_t), kernels));
  size_t begin = slots;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t size = room(i + 1 < pieces ? each_bytes : last_bytes);
    Slot& slot = pieces_.next();
    slot.free.block(kernels);
    const codec::Piece piece{i * each, std::min((i + 1) * each, groups), begin, beyond, pieces};
    work({{heads.data, heads_bytes}, {slot.data, size}, piece, vectors + i});
    slot.full.record(kernels);
    copies.next(size);
    slot.full.block(copies.stream());
    copy_to_host(buffer, begin, begin + size, slot.data, copies.stream());
    slot.free.record(copies.stream());
    begin += size;
  }
  // After the last piece's event.
  copy_to_host(buffer, codec::kLine, codec::kLine + heads_bytes, heads.data, copies.stream());
  heads.free.record(copies.stream());
  return beyond;
}

void Staging::bring(
    size_t bytes,
    const HostBuffer& buffer,
    size_t end,
    Relay& copies,
    cudaStream_t kernels,
    const Find& find,
    const Unpack& work) {
  const size_t slots = codec::slots(bytes);
  const size_t pieces = end > slots ? (end - slots + piece_ - 1) / piece_ : 1;
  Slot& heads = heads_.next();
  heads.free.block(copies.stream());
  const size_t heads_bytes = codec::groups(bytes) * codec::kLine;
  copy_to_device(buffer, codec::kLine, codec::kLine + heads_bytes, heads.data, copies.stream());
  auto* const ranges = reinterpret_cast<codec::Range*>(heads.data + heads_bytes);
  if (pieces > 1) {
    heads.full.record(copies.stream());
    heads.full.block(kernels);
    const codec::Target target{heads.data + heads_bytes, pieces * sizeof(codec::Range)};
    C10_CUDA_CHECK(cudaMemsetAsync(ranges, 0, target.size, kernels));
    find({heads.data, heads_bytes}, {slots, piece_, pieces}, target);
  }
  for (size_t i = 0; i < pieces; ++i) {
    const size_t begin = slots + i * piece_;
    Slot& slot = pieces_.next();
    // A chunk that begins in a piece may end behind it.
    const size_t size = std::min(piece_ + codec::kChunk, end - std::min(begin, end));
    copies.next(size);
    slot.free.block(copies.stream());
    copy_to_device(buffer, begin, begin + size, slot.data, copies.stream());
    slot.full.record(copies.stream());
    slot.full.block(kernels);
    // A chunk of no bytes may begin at the end of the buffer.
    const uint64_t until = i + 1 < pieces ? begin + piece_ : std::numeric_limits<uint64_t>::max();
    const codec::Range* const range = pieces > 1 ? ranges + i : nullptr;
    const auto windows = static_cast<uint32_t>(pieces);
    work({{heads.data, heads_bytes}, {slot.data, size, begin, until}, range, windows});
    slot.free.record(kernels);
  }
  heads.free.record(kernels);
}

} // namespace torch::cuda::lms
