#pragma once

#include <torch/csrc/cuda/lms/codec/kind.h>

#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

// What is known of a block's data, for compression.
struct Origin {
  const char* writer = nullptr; // the last operator that may have written it
  codec::Kind kind = codec::Kind::None; // what kind of data operators took it for
};

// What shrinks as far as each other: what the same block of an iteration holds each time, or,
// without a slot, all blocks that the same operator has written.
struct Like {
  size_t bytes;
  const char* writer;
  codec::Kind kind;
  uint32_t slot = 0; // as in Block; 0: any

  Like of(uint32_t slot) const {
    return {bytes, writer, kind, slot};
  }
  bool operator==(const Like& other) const {
    return bytes == other.bytes && writer == other.writer && kind == other.kind &&
           slot == other.slot;
  }
};

} // namespace torch::cuda::lms
