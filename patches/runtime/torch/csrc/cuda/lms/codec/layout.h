#pragma once

#include <cstddef>
#include <cstdint>

// Where packed bytes are in a host buffer, and how large it has to be. kernels.cpp has the code
// that writes and reads it.
//
// A block is packed in chunks of kChunk bytes, each on its own. A buffer has
//
//   a line   the summary: bytes written, chunks that did not shrink, and where the last one ends
//   lines    the heads of kGroup chunks each
//   chunks   in any order; each begins at a line, or at 16 bytes if it was packed by way of device
//            memory, in pieces (kernel/staging.h)
//
// A head has 8 bytes, and says where the chunk is, in units of 16 bytes from the start of the
// buffer (32 bits), and how it is packed:
//
//   floats    the number of values that are not zero (12 bits), the width of codes (4), what is
//   added
//             to them (8), the number of odd values (8)
//   integers  the width of codes (12 bits); what is added to the codes of bytes (8, at bit 16)
//   a width of 15: the chunk is stored as it is. So are the last bytes that are not a whole chunk.
//
// A packed chunk has, one after the other:
//
//   floats    a bitmap of the values that are not zero, if some are zero and some are not
//   integers  16 bytes: the smallest value, except for bytes, whose head has it
//   for each value: its code less the smallest one, and the rest (sign and mantissa) as it is
//   floats    of odd values, which are too small for the width: their indices, and their codes
//
// The widths of codes and rests are split into powers of two. The pieces of eight values that have
// the same width are one aligned word, so no value is in two words, and no atomics are needed. All
// words of one width are next to each other, the widest ones first.
//
// A warp takes the room for a chunk from a counter when it knows how much the chunk needs. So the
// chunks are next to each other, in the order in which their sizes were known, and the buffer is as
// large as what is in it, and up to a line more for each chunk. A piece has a counter of its own,
// and behind its chunks there may be room that is not used. How large that is, the host learns
// when the kernel has ended. So a buffer has room for chunks that do not shrink while it is
// written, and afterwards the host cuts it off behind the last chunk.
namespace torch::cuda::lms::codec {

constexpr size_t kChunk = 2048; // bytes
constexpr size_t kGroup = 16; // chunks
constexpr size_t kLine = 128; // bytes
constexpr size_t kAlign = 4096; // bytes; the size of each part of a buffer is a multiple of this
// A chunk that would not save a line is stored as it is.
constexpr size_t kMostPacked = kChunk - kLine; // bytes

constexpr size_t chunks(size_t bytes) {
  return (bytes + kChunk - 1) / kChunk;
}

constexpr size_t groups(size_t bytes) {
  return (chunks(bytes) + kGroup - 1) / kGroup;
}

// Bytes before the first chunk.
constexpr size_t slots(size_t bytes) {
  return ((1 + groups(bytes)) * kLine + kChunk - 1) / kChunk * kChunk;
}

// How large a buffer has to be while a block of this many bytes is packed: 0.4 % larger, and up to
// two chunks. Afterwards the summary's end is enough.
constexpr size_t buffer_bytes(size_t bytes) {
  return bytes == 0 ? 0 : slots(bytes) + chunks(bytes) * kChunk;
}

// The largest number of bytes that packing writes, whatever they are.
constexpr size_t most_written(size_t bytes) {
  return bytes == 0 ? 0 : (bytes + 15) / 16 * 16 + chunks(bytes) * sizeof(uint64_t);
}

// Larger blocks are copied as they are: a head could not say where their last chunks are.
constexpr size_t kMostBytes = size_t(32) << 30;

// The first line of a buffer.
struct Summary {
  uint64_t written; // bytes of chunks and heads
  uint64_t raw; // chunks that did not shrink
  uint64_t end; // bytes of the buffer that are needed from now on
};

} // namespace torch::cuda::lms::codec
