#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec::text {

// A packed chunk: where its parts are, and how the fields of its values are written and read.
const char* const kFields = R"cuda(
// What a head says of a chunk.
struct Head {
  u32 where; // offset in the buffer, in units of 16 bytes
  u32 count; // floats: values that are not zero; integers: the width of codes
  u32 width; // floats: the width of codes; kRaw: not packed
  u32 base; // what is added to the codes, except to those of int32 and int64
  u32 odd; // floats whose code is stored beside

  LMS_DEVICE u64 word() const {
    return where | u64(count | width << 12 | base << 16 | odd << 24) << 32;
  }
  static LMS_DEVICE Head of(u64 word) {
    const u32 bits = u32(word >> 32);
    return {u32(word), bits & 4095, bits >> 12 & 15, bits >> 16 & 255, bits >> 24};
  }
};

// Where the parts of a packed chunk are: offsets and sizes in bytes.
struct Body {
  u32 bitmap; // size; it is first
  u32 base; // size; it is first, too
  u32 octets; // of values
  u32 width; // of codes
  u32 odd;
  u32 fields; // offset
  u32 indices; // offset of those of odd values, of 2 bytes
  u32 codes; // offset of those of odd values, of 1 byte
  u32 size;
};

LMS_INLINE Body body_of(const Head& head) {
  Body body;
  const bool sparse = Format::kFloat && head.count > 0 && head.count < kWords;
  body.bitmap = sparse ? kWords / 8 : 0;
  body.base = !Format::kFloat && sizeof(Word) > 1 ? 16 : 0;
  body.octets = Format::kFloat ? (head.count + 7) / 8 : kWords / 8;
  body.width = Format::kFloat ? head.width : head.count;
  body.odd = head.odd;
  body.fields = body.bitmap + body.base;
  body.indices = (body.fields + body.octets * (Format::kRest + body.width) + 1) & ~1u;
  body.codes = body.indices + 2 * head.odd;
  body.size = body.codes + head.odd;
  if (head.width == kRaw) {
    body.size = kChunk;
  }
  return body;
}

// The fields of eight values. A field is stored in pieces whose widths are powers of two, so the
// pieces of an octet are an aligned word. All pieces of one width are next to each other, the widest
// ones first. `shift` is where a piece is in its field.
template <u32 width>
LMS_INLINE void put(char* to, const Field (&fields)[8], u32 shift) {
  constexpr u64 mask = (u64(1) << width) - 1;
  if (width <= 4) {
    u32 bits = 0;
    LMS_UNROLL
    for (u32 i = 0; i < 8; ++i) {
      bits |= (u32(fields[i] >> shift) & u32(mask)) << (i * width % 32);
    }
    if (width == 4) {
      *reinterpret_cast<u32*>(to) = bits;
    } else if (width == 2) {
      *reinterpret_cast<u16*>(to) = u16(bits);
    } else {
      *reinterpret_cast<u8*>(to) = u8(bits);
    }
    return;
  }
  constexpr u32 of_word = 64 / width;
  LMS_UNROLL
  for (u32 first = 0; first < 8; first += of_word) {
    u64 bits = 0;
    LMS_UNROLL
    for (u32 i = 0; i < of_word; ++i) {
      bits |= (u64(fields[first + i] >> shift) & mask) << (i * width);
    }
    reinterpret_cast<u64*>(to)[first / of_word] = bits;
  }
}

template <u32 width>
LMS_INLINE void get(const char* at, Field (&fields)[8], u32 shift) {
  constexpr u64 mask = (u64(1) << width) - 1;
  if (width <= 4) {
    const u32 bits = width == 4 ? *reinterpret_cast<const u32*>(at)
        : width == 2            ? *reinterpret_cast<const u16*>(at)
                                : *reinterpret_cast<const u8*>(at);
    LMS_UNROLL
    for (u32 i = 0; i < 8; ++i) {
      fields[i] |= Field(bits >> (i * width % 32) & u32(mask)) << shift;
    }
    return;
  }
  constexpr u32 of_word = 64 / width;
  LMS_UNROLL
  for (u32 first = 0; first < 8; first += of_word) {
    const u64 bits = reinterpret_cast<const u64*>(at)[first / of_word];
    LMS_UNROLL
    for (u32 i = 0; i < of_word; ++i) {
      fields[first + i] |= Field(bits >> (i * width) & mask) << shift;
    }
  }
}

template <u32 width, typename Piece>
LMS_INLINE void pieces_of(const Body& body, u32 octet, u32& at, Piece& piece) {
  if (Format::kRest & width) {
    piece.template each<width>(at + octet * width, false, Format::kRest & (width - 1));
    at += body.octets * width;
  }
  if (width <= Format::kCode && (body.width & width) != 0) {
    piece.template each<width>(at + octet * width, true, body.width & (width - 1));
    at += body.octets * width;
  }
}

// Calls piece.each<bits>(offset of the octet's piece, whether it is of the code, shift). Not a
// function object with an argument of type auto: NVRTC takes such a lambda for a host function.
template <typename Piece>
LMS_INLINE void each_piece(const Body& body, u32 octet, Piece piece) {
  u32 at = body.fields;
  pieces_of<32>(body, octet, at, piece);
  pieces_of<16>(body, octet, at, piece);
  pieces_of<8>(body, octet, at, piece);
  pieces_of<4>(body, octet, at, piece);
  pieces_of<2>(body, octet, at, piece);
  pieces_of<1>(body, octet, at, piece);
}

// Of integers, which are all code.
struct Putter {
  char* packed;
  const Field (&codes)[8];

  template <u32 width>
  LMS_DEVICE void each(u32 at, bool, u32 shift) {
    put<width>(packed + at, codes, shift);
  }
};

struct Getter {
  const char* packed;
  Field (&codes)[8];

  template <u32 width>
  LMS_DEVICE void each(u32 at, bool, u32 shift) {
    get<width>(packed + at, codes, shift);
  }
};

// Of floats. Their rests are bytes if they fit.
constexpr bool kSmallRest = Format::kRest <= 8;

struct FloatPutter {
  char* packed;
  const Eight& codes;
  const Eight& rests;
  const Field (&large_rests)[8];

  template <u32 width>
  LMS_DEVICE void each(u32 at, bool code, u32 shift) {
    if (code || kSmallRest) {
      put_bytes<width>(packed + at, code ? codes : rests, shift);
    } else {
      put<width>(packed + at, large_rests, shift);
    }
  }
};

struct FloatGetter {
  const char* packed;
  Eight& codes;
  Eight& rests;
  Field (&large_rests)[8];

  template <u32 width>
  LMS_DEVICE void each(u32 at, bool code, u32 shift) {
    if (code || kSmallRest) {
      get_bytes<width>(packed + at, code ? codes : rests, shift);
    } else {
      get<width>(packed + at, large_rests, shift);
    }
  }
};

LMS_INLINE void write_integers(Scratch& scratch, const Body& body, Field base) {
  char* const packed = reinterpret_cast<char*>(scratch.packed);
  each_lane([&](u32 lane) {
    for (u32 octet = lane; octet < body.octets; octet += 32) {
      const Octet from = scratch.data[octet];
      Field codes[8];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        codes[i] = Format::code(from.words[i]) - base;
      }
      each_piece(body, octet, Putter{packed, codes});
    }
  });
}

LMS_INLINE void write_floats(Scratch& scratch, const Body& body, u32 base) {
  char* const packed = reinterpret_cast<char*>(scratch.packed);
  Lanes<u64> odd;
  Lanes<u32> count;
  each_lane([&](u32 lane) {
    odd[lane] = 0;
    u32 turn = 0;
    for (u32 octet = lane; octet < body.octets; octet += 32, ++turn) {
      const Octet from = scratch.data[octet];
      Eight codes = codes_of(from);
      Eight rests = {};
      Field large_rests[8] = {};
      u32 mine = 0;
      LMS_UNROLL
      for (u32 i = 0; i < 2; ++i) {
        codes.half[i] = less(codes.half[i], base * kBytes);
        mine |= gathered<1>(above(codes.half[i], body.width)) << (4 * i);
      }
      odd[lane] |= u64(mine) << (8 * turn);
      if (kSmallRest) {
        rests = rests_of(from);
      } else {
        LMS_UNROLL
        for (u32 i = 0; i < 8; ++i) {
          large_rests[i] = Format::rest(from.words[i]);
        }
      }
      each_piece(body, octet, FloatPutter{packed, codes, rests, large_rests});
    }
    count[lane] = ones(u32(odd[lane])) + ones(u32(odd[lane] >> 32));
  });
  if (body.odd == 0) {
    return;
  }
  Lanes<u32> before = sum_before(count);
  each_lane([&](u32 lane) {
    u32 to = before[lane];
    for (u64 left = odd[lane]; left != 0; left &= left - 1, ++to) {
      const u32 bit = lowest(left);
      const u32 octet = lane + bit / 8 * 32;
      reinterpret_cast<u16*>(packed + body.indices)[to] = u16(octet * 8 + bit % 8);
      packed[body.codes + to] = char(Format::code(scratch.data[octet].words[bit % 8]));
    }
  });
}

LMS_INLINE void read_integers(Scratch& scratch, const Body& body, Field base) {
  const char* const packed = reinterpret_cast<const char*>(scratch.packed);
  each_lane([&](u32 lane) {
    for (u32 octet = lane; octet < body.octets; octet += 32) {
      Field codes[8] = {};
      each_piece(body, octet, Getter{packed, codes});
      Octet to;
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        to.words[i] = Format::join(codes[i] + base, 0);
      }
      scratch.data[octet] = to;
    }
  });
}

LMS_INLINE void read_floats(Scratch& scratch, const Body& body, u32 base) {
  const char* const packed = reinterpret_cast<const char*>(scratch.packed);
  each_lane([&](u32 lane) {
    for (u32 octet = lane; octet < body.octets; octet += 32) {
      Eight codes = {};
      Eight rests = {};
      Field large_rests[8] = {};
      each_piece(body, octet, FloatGetter{packed, codes, rests, large_rests});
      codes.half[0] += base * kBytes;
      codes.half[1] += base * kBytes;
      Octet to;
      if (kSmallRest) {
        to = joined(codes, rests);
      } else {
        LMS_UNROLL
        for (u32 i = 0; i < 8; ++i) {
          const u32 code = codes.half[i / 4] >> (i % 4 * 8) & 0xff;
          to.words[i] = Format::join(Field(code), large_rests[i]);
        }
      }
      scratch.data[octet] = to;
    }
  });
  if (body.odd == 0) {
    return;
  }
  each_lane([&](u32 lane) {
    for (u32 i = lane; i < body.odd; i += 32) {
      const u32 index = reinterpret_cast<const u16*>(packed + body.indices)[i] % kWords;
      Word& word = scratch.data[index / 8].words[index % 8];
      word = Format::join(u8(packed[body.codes + i]), Format::rest(word));
    }
  });
}
)cuda";

} // namespace torch::cuda::lms::codec::text
