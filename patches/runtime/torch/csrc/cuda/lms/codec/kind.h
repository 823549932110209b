#pragma once

namespace torch::cuda::lms::codec {

// What the bytes of a block are taken for when they are packed. This only decides how far they
// shrink: bytes of another kind are packed without loss, too. The numbers are known to format.cpp.
enum class Kind : unsigned char {
  None = 0, // copied as it is
  BFloat16 = 1,
  Float16 = 2,
  Float32 = 3,
  Float8E4 = 4, // 4 bits of exponent
  Float8E5 = 5, // 5 bits of exponent
  Int64 = 6,
  Int32 = 7,
  Int16 = 8,
  Byte = 9, // bool, uint8 and int8
};
constexpr int kKinds = 10;

// The kind of data with a c10::ScalarType, which is given by its name (c10::toString()), because
// not every release has all of them.
Kind kind_of(const char* scalar_type);

// A name for messages, statistics and files, such as "bfloat16".
const char* name(Kind kind);

} // namespace torch::cuda::lms::codec
