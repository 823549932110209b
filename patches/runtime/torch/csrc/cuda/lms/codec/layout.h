#pragma once

#include <cstddef>
#include <cstdint>

// Where packed bytes are in a host buffer, and how large it has to be. kernels.cpp has the code
// that writes and reads it.
//
// A block is packed in chunks of kChunk bytes, each on its own. A buffer has
//
//   a line   the summary: bytes written, and chunks that did not shrink
//   lines    the heads of kGroup chunks each
//   slots    one for each chunk, of which it uses the first bytes
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
// Slots have the size of a chunk. So a buffer is a little larger than the block, a chunk can be
// written before the sizes of others are known, and only the link has less to do. Where a buffer
// should be as small as what is in it, chunks are put next to each other: lms_unpack() need not
// change, because it takes the place of a chunk from its head. lms_pack() then needs the sizes
// before it writes, either as prefix sums over the sizes that a first kernel has found (reading the
// block takes a fiftieth of the time of the link), or as ranges that each warp takes from a counter
// for a group of chunks. Chunks have to begin at multiples of 16 bytes; at lines, full packets are
// more. The buffer has to be taken before the sizes are known, so it would have what the block took
// in its last round and some more, and the summary would say that this was not enough.
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

// Bytes before the first slot.
constexpr size_t slots(size_t bytes) {
  return ((1 + groups(bytes)) * kLine + kChunk - 1) / kChunk * kChunk;
}

// How large a buffer for a block of this many bytes is: 0.4 % larger, and up to two chunks.
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
  uint64_t written; // bytes of slots and heads that are used
  uint64_t raw; // chunks that did not shrink
};

} // namespace torch::cuda::lms::codec
