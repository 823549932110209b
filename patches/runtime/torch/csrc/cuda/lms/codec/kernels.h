#pragma once

#include <torch/csrc/cuda/lms/codec/hash.h>
#include <torch/csrc/cuda/lms/codec/kind.h>
#include <torch/csrc/cuda/lms/codec/layout.h>

#include <cstddef>
#include <cstdint>
#include <string>

// The kernels that pack and unpack blocks, and their parameters. The structures are declared a
// second time in kernels.cpp, for NVRTC.
namespace torch::cuda::lms::codec {

// CUDA C++14 without headers. Each kind is compiled on its own, when it is first used.
std::string source(Kind kind);

constexpr unsigned kThreads = 256; // per thread block
constexpr unsigned kMostThreads = 768; // the same; with more, registers would not suffice
constexpr size_t kShared = 2 * kChunk; // bytes of shared memory, for each warp
constexpr size_t kParts = 8; // maximum number of parts of a buffer

// Device memory, aligned to 16 bytes. It is read.
struct Bytes {
  const char* data;
  uint64_t size;
};

// Device memory, aligned to 16 bytes. It is written.
struct Target {
  char* data;
  uint64_t size;
};

// A buffer: pinned host memory, aligned to kAlign.
struct Part {
  char* data;
  uint64_t size; // bytes; a multiple of kAlign, except for the last part
};

struct Parts {
  uint64_t count;
  Part part[kParts];
};

// A range of a buffer, which is in device memory.
struct Window {
  const char* data; // where the range begins, aligned to 16 bytes
  uint64_t size; // bytes there
  uint64_t begin; // bytes from the start of the buffer
  uint64_t end; // the same; chunks that begin behind it are in other windows
};

// The windows of a block, one after the other.
struct Windows {
  uint64_t begin; // of the first one, in bytes from the start of the buffer
  uint64_t size; // bytes of each, a multiple of 16
  uint64_t count; // chunks that begin behind the last one are taken to be in it
};

// Where the chunks are that begin in a window; others may be among them.
struct Range {
  uint32_t before; // the complement of the first one
  uint32_t end; // the one after the last one
};

// Some groups of a block, which are packed into device memory, from where they are copied to the
// buffer.
struct Piece {
  uint64_t first; // group
  uint64_t end; // the group after the last one
  uint64_t begin; // where the chunks will be, in bytes from the start of the buffer
  uint64_t beyond; // where chunks are put for which the piece has no room, the same
  uint64_t pieces; // of the block
};

// On the device, for one block at a time. Initially zero, and zero again after each block, except
// for the turn.
struct Tally {
  uint64_t packed;
  uint64_t raw;
  uint64_t lines; // that chunks in the buffer itself have taken so far
  uint64_t done;
};

// Kernels that pack set the expected hash of a slot to that of what they packed. Those that unpack
// compare it with the hash of what they unpacked; if it is another one, they set *corrupted to 1,
// and stop the device with an error. A null slot has no hash.

// Does nothing if the fourth parameter is not null and points to 0 on the device. Without a tally,
// every chunk has a place of its full size, and of the summary only the end is written. The fifth
// parameter is how long it takes at least to write 1 MiB, in nanoseconds; it is 0 without a tally.
constexpr const char* kPack =
    "lms_pack"; // (Bytes, Parts, Tally*, const uint32_t*, uint64_t, Slot*)
// Packs a piece: heads to the first target, which is for all heads of the block, and chunks to the
// second one, as far as it has room. The seventh parameter counts the vectors of 16 bytes there,
// and is 0 at first. Has to be launched for all pieces of a block.
constexpr const char* kPackPiece =
    "lms_pack_piece"; // (Bytes, Parts, Target, Target, Piece, Tally*, uint64_t*, Slot*)
// Does nothing if the third parameter is not 0, and no chunk is behind so many bytes of the buffer,
// except that it compares the hash of what was unpacked before, in windows.
constexpr const char* kUnpack =
    "lms_unpack"; // (Target, Parts, uint64_t, Slot*, uint32_t* corrupted)
// Finds the chunks that begin in each window. The first parameter is the number of chunks, the
// second one has all heads, and the last one gets a Range for each window, initially 0.
constexpr const char* kFind = "lms_find"; // (uint32_t, Bytes, Windows, Target)
// Unpacks the chunks that begin in a window and are there as a whole. The heads of all chunks are
// in device memory, too. The range is null if all of them have to be looked at. Has to be launched,
// with as many warps each time, for as many windows as the fifth parameter says, the last of which
// compares the hash. If that is 0, lms_unpack has to follow.
constexpr const char* kUnpackWindow =
    "lms_unpack_window"; // (Target, Bytes, Window, const Range*, uint32_t, Slot*, uint32_t*)

// Thread blocks, and the threads of each, which are whole warps.
struct Grid {
  unsigned blocks;
  unsigned threads = kThreads;

  constexpr unsigned block_warps() const {
    return threads / 32;
  }
  constexpr size_t warps() const {
    return size_t(blocks) * block_warps();
  }
  constexpr size_t block_shared() const {
    return block_warps() * kShared;
  }
};

// What to launch, at most `most`, for a block of this many bytes (more than 0). A warp takes a
// group of chunks at a time, so more would have nothing to do.
constexpr Grid grid(size_t bytes, Grid most) {
  const size_t useful = (groups(bytes) + most.block_warps() - 1) / most.block_warps();
  return {useful < most.blocks ? static_cast<unsigned>(useful) : most.blocks, most.threads};
}

// The link needs no more, see kernels.cpp. The rest of the GPU computes meanwhile, more slowly the
// more there are, so a larger number has to be measured.
constexpr unsigned kMostBlocks = 64;

} // namespace torch::cuda::lms::codec
