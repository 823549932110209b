#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec::text {

// Codes and rests of eight floats at a time. Those that fit into a byte are in one, so that an
// operation works on four of them: packing takes as long as its instructions.
const char* const kFloats = R"cuda(
constexpr u32 kBytes = 0x01010101; // a one in each byte

// A byte of each of eight values, from the lowest one on.
struct Eight {
  u32 half[2];
};

// As many ones as a value of this width has, in each value of a word.
LMS_INLINE u32 repeated(u32 value) {
  return sizeof(Word) == 1 ? value * kBytes : sizeof(Word) == 2 ? value * 0x00010001 : value;
}

LMS_INLINE Eight codes_of(const Octet& octet) {
  Eight codes;
  LMS_UNROLL
  for (u32 i = 0; i < 2; ++i) {
    if (sizeof(Word) == 1) {
      codes.half[i] = octet.part(i) >> Format::kCodeAt & repeated(Format::kCodes);
    } else if (sizeof(Word) == 2 && Format::kCode == 8) {
      codes.half[i] = bytes_of(octet.part(2 * i) << 1, octet.part(2 * i + 1) << 1, 0x7531);
    } else if (sizeof(Word) == 2) {
      const u32 first = octet.part(2 * i) >> Format::kCodeAt & repeated(Format::kCodes);
      const u32 second = octet.part(2 * i + 1) >> Format::kCodeAt & repeated(Format::kCodes);
      codes.half[i] = bytes_of(first, second, 0x6420);
    } else {
      const u32 first = bytes_of(octet.part(4 * i) << 1, octet.part(4 * i + 1) << 1, 0x73);
      const u32 second = bytes_of(octet.part(4 * i + 2) << 1, octet.part(4 * i + 3) << 1, 0x73);
      codes.half[i] = bytes_of(first, second, 0x5410);
    }
  }
  return codes;
}

// Rests of at most eight bits.
LMS_INLINE Eight rests_of(const Octet& octet) {
  constexpr u32 down = (Format::kBits - 1 - Format::kCodeAt) % 32; // of the sign
  Eight rests;
  LMS_UNROLL
  for (u32 i = 0; i < 2; ++i) {
    u32 found[2];
    LMS_UNROLL
    for (u32 j = 0; j < 2; ++j) {
      const u32 part = octet.part(sizeof(Word) == 1 ? i : 2 * i + j);
      found[j] = (part & repeated(Format::kMantissas)) |
          (part >> down & repeated(1u << Format::kCodeAt));
    }
    rests.half[i] = sizeof(Word) == 1 ? found[0] : bytes_of(found[0], found[1], 0x6420);
  }
  return rests;
}

// The reverse.
LMS_INLINE Octet joined(const Eight& codes, const Eight& rests) {
  Octet octet;
  if (sizeof(Word) == 1) {
    LMS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      octet.part(i) = (rests.half[i] & repeated(Format::kMantissas)) |
          codes.half[i] << Format::kCodeAt | (rests.half[i] >> Format::kCodeAt & kBytes) << 7;
    }
  } else {
    LMS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 both =
          bytes_of(rests.half[i / 2], codes.half[i / 2], i % 2 == 0 ? 0x5140 : 0x7362);
      octet.part(i) =
          (both & 0x007f007f) | (both >> 1 & 0x7f807f80) | (both << 8 & 0x80008000);
    }
  }
  return octet;
}

// A one in each field of a word that is not zero. A field has `bits` bits; `ones` are its lowest.
LMS_INLINE u32 fields_in(u32 word, u32 bits, u32 ones) {
  const u32 low = ones * ((1u << (bits - 1)) - 1); // all bits but the highest
  return (((word & low) + low) | word) >> (bits - 1) & ones;
}

// Ones that are where values are in a word, for those that are not zero.
LMS_INLINE u32 values_in(u32 part) {
  return sizeof(Word) >= 4 ? u32(part != 0) : fields_in(part, sizeof(Word) == 1 ? 8 : 16, repeated(1));
}

// Their number, of the sum of some of these.
LMS_INLINE u32 counted(u32 ones) {
  return sizeof(Word) == 1 ? sum_of_bytes(ones)
      : sizeof(Word) == 2  ? (ones & 0xffff) + (ones >> 16)
                           : ones;
}

// Differences of bytes, each on its own.
LMS_INLINE u32 less(u32 bytes, u32 base) {
  constexpr u32 high = 0x80 * kBytes;
  return ((bytes | high) - (base & ~high)) ^ ((bytes ^ ~base) & high);
}

// A bit for each byte that is not 0 when its lowest bits are left out.
LMS_INLINE u32 above(u32 bytes, u32 width) {
  return fields_in(bytes & (0xffu << width & 0xff) * kBytes, 8, kBytes);
}

// The lowest bits of four bytes next to each other, and back.
template <u32 width>
LMS_INLINE u32 gathered(u32 bytes) {
  constexpr u32 all = (1u << width) - 1;
  constexpr u32 two = (1u << 2 * width) - 1;
  bytes &= all * kBytes;
  bytes = (bytes | bytes >> (8 - width)) & two * 0x00010001;
  return (bytes | bytes >> (16 - 2 * width)) & ((two << 2 * width) | two);
}

template <u32 width>
LMS_INLINE u32 scattered(u32 bits) {
  constexpr u32 all = (1u << width) - 1;
  constexpr u32 two = (1u << 2 * width) - 1;
  bits &= (two << 2 * width) | two;
  bits = (bits | bits << (16 - 2 * width)) & two * 0x00010001;
  return (bits | bits << (8 - width)) & all * kBytes;
}

// A bit for each of eight values that is not zero.
LMS_INLINE u32 not_zero(const Octet& octet) {
  constexpr u32 each = 8 / (2 * sizeof(Word) < 8 ? 2 * sizeof(Word) : 8); // values of a word
  u32 bits = 0;
  LMS_UNROLL
  for (u32 i = 0; i < 8 / each; ++i) {
    const u32 found = values_in(octet.part(i));
    const u32 few = each == 4 ? gathered<1>(found) : each == 2 ? (found | found >> 15) & 3 : found;
    bits |= few << (each * i);
  }
  return bits;
}

// As put() and get(), with at most eight bits of each value.
template <u32 width>
LMS_INLINE void put_bytes(char* to, const Eight& bytes, u32 shift) {
  constexpr u32 few = width < 8 ? width : 4;
  if (width == 8) {
    *reinterpret_cast<u64*>(to) = bytes.half[0] | u64(bytes.half[1]) << 32;
    return;
  }
  const u32 bits = gathered<few>(bytes.half[0] >> shift) |
      gathered<few>(bytes.half[1] >> shift) << (4 * few);
  if (width == 4) {
    *reinterpret_cast<u32*>(to) = bits;
  } else if (width == 2) {
    *reinterpret_cast<u16*>(to) = u16(bits);
  } else {
    *reinterpret_cast<u8*>(to) = u8(bits);
  }
}

template <u32 width>
LMS_INLINE void get_bytes(const char* at, Eight& bytes, u32 shift) {
  constexpr u32 few = width < 8 ? width : 4;
  if (width == 8) {
    const u64 all = *reinterpret_cast<const u64*>(at);
    bytes.half[0] |= u32(all);
    bytes.half[1] |= u32(all >> 32);
    return;
  }
  const u32 bits = width == 4 ? *reinterpret_cast<const u32*>(at)
      : width == 2            ? *reinterpret_cast<const u16*>(at)
                              : *reinterpret_cast<const u8*>(at);
  bytes.half[0] |= scattered<few>(bits) << shift;
  bytes.half[1] |= scattered<few>(bits >> 4 * few) << shift;
}
)cuda";

} // namespace torch::cuda::lms::codec::text
