#include <torch/csrc/cuda/lms/codec/kernels.h>

namespace torch::cuda::lms::codec {

namespace {

// One warp packs one chunk at a time. The format of a packed chunk is described in layout.h.
//
// The same text is compiled for the CPU, by the simulated device and by the tests. There, a warp is
// a loop: what a lane keeps in a register is Lanes<T>, each_lane() runs a function for every lane,
// and only functions such as ballot() combine what the lanes have. What one each_lane() writes to
// shared memory, the next one may read, because each of them ends with a barrier of the warp.
//
// The link decides how fast this is, so the kernels keep three things:
// - A store to host memory is 16 bytes per lane, and 512 bytes of consecutive addresses per warp
//   except at the end of a chunk. Slots begin at lines of 128 bytes. So nearly all of PCIe's
//   packets are full. A group's heads are one line, which is written and read at once.
// - Only the vectors of 16 bytes that a chunk uses are written and read.
// - A read of host memory takes 1 to 2 us, and how many bytes to read is known from the head alone.
//   So the heads of a warp's next group are read while it unpacks a group, and a chunk is read
//   while the one before it is unpacked. A warp has nearly always one chunk on the way. At 50 GB/s
//   and 2 us there have to be 100 KB on the way, which is what 80 to 100 warps have.
constexpr char kText[] = R"cuda(
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 kChunk = 2048; // bytes of data
constexpr u32 kGroup = 16; // chunks
constexpr u32 kLine = 128; // bytes
constexpr u32 kMost = kChunk - kLine; // bytes of a packed chunk; otherwise it is stored as it is
constexpr u32 kRaw = 15; // a width that says so
constexpr u32 kVectors = 4; // of 16 bytes, per lane and chunk

#ifdef __CUDACC__

#define LMS_THREADS 256
#define LMS_READS(pointer, size)
#define LMS_WRITES(pointer, size)
#define LMS_DEVICE __device__ __forceinline__ // of a member
#define LMS_INLINE __device__ __forceinline__
#define LMS_UNROLL _Pragma("unroll")

template <typename T>
struct Lanes {
  T own;
  LMS_DEVICE T& operator[](u32) {
    return own;
  }
};

template <typename Work>
LMS_INLINE void each_lane(Work work) {
  work(threadIdx.x % 32);
  __syncwarp();
}

LMS_INLINE u32 ballot(Lanes<bool>& values) {
  return __ballot_sync(~0u, values.own);
}

template <typename T>
LMS_INLINE T from(Lanes<T>& values, u32 lane) {
  return __shfl_sync(~0u, values.own, lane);
}

LMS_INLINE u32 sum(Lanes<u32>& values) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(~0u, values.own);
#else
  u32 value = values.own;
  for (u32 other = 16; other > 0; other /= 2) {
    value += __shfl_xor_sync(~0u, value, other);
  }
  return value;
#endif
}

LMS_INLINE u32 least(Lanes<u32>& values) {
#if __CUDA_ARCH__ >= 800
  return __reduce_min_sync(~0u, values.own);
#else
  u32 value = values.own;
  for (u32 other = 16; other > 0; other /= 2) {
    value = min(value, __shfl_xor_sync(~0u, value, other));
  }
  return value;
#endif
}

LMS_INLINE u64 least(Lanes<u64>& values) {
  u64 value = values.own;
  for (u32 other = 16; other > 0; other /= 2) {
    value = min(value, __shfl_xor_sync(~0u, value, other));
  }
  return value;
}

// The sum over the lanes before each lane.
LMS_INLINE Lanes<u32> sum_before(Lanes<u32>& values) {
  u32 value = values.own;
  for (u32 other = 1; other < 32; other *= 2) {
    const u32 before = __shfl_up_sync(~0u, value, other);
    value += threadIdx.x % 32 >= other ? before : 0;
  }
  return {value - values.own};
}

LMS_INLINE u32 ones(u32 bits) {
  return __popc(bits);
}
// How many bits a value needs; 0 for 0.
LMS_INLINE u32 length(u32 value) {
  return 32 - __clz(value);
}
LMS_INLINE u32 length(u64 value) {
  return 64 - __clzll(value);
}
LMS_INLINE u32 lowest(u64 bits) {
  return __ffsll(bits) - 1;
}

#else

#ifndef LMS_READS
#define LMS_READS(pointer, size)
#endif
#define LMS_DEVICE inline
#define LMS_INLINE static inline
#define LMS_UNROLL

template <typename T>
struct Lanes {
  T all[32];
  T& operator[](u32 lane) {
    return all[lane];
  }
};

template <typename Work>
LMS_INLINE void each_lane(Work work) {
  for (u32 lane = 0; lane < 32; ++lane) {
    work(lane);
  }
  asm volatile("" ::: "memory"); // other types may be read from the same memory from here on
}

LMS_INLINE u32 ballot(Lanes<bool>& values) {
  u32 bits = 0;
  each_lane([&](u32 lane) { bits |= u32(values[lane]) << lane; });
  return bits;
}

template <typename T>
LMS_INLINE T from(Lanes<T>& values, u32 lane) {
  return values[lane % 32];
}

LMS_INLINE u32 sum(Lanes<u32>& values) {
  u32 total = 0;
  each_lane([&](u32 lane) { total += values[lane]; });
  return total;
}

template <typename T>
LMS_INLINE T least(Lanes<T>& values) {
  T value = values[0];
  each_lane([&](u32 lane) { value = values[lane] < value ? values[lane] : value; });
  return value;
}

LMS_INLINE Lanes<u32> sum_before(Lanes<u32>& values) {
  Lanes<u32> sums;
  u32 total = 0;
  each_lane([&](u32 lane) {
    sums[lane] = total;
    total += values[lane];
  });
  return sums;
}

LMS_INLINE u32 ones(u32 bits) {
  return __builtin_popcount(bits);
}
LMS_INLINE u32 length(u32 value) {
  return value != 0 ? 32 - __builtin_clz(value) : 0;
}
LMS_INLINE u32 length(u64 value) {
  return value != 0 ? 64 - __builtin_clzll(value) : 0;
}
LMS_INLINE u32 lowest(u64 bits) {
  return __builtin_ctzll(bits);
}

#endif

constexpr u32 kWarps = (LMS_THREADS + 31) / 32;

// A value has a code, of which many values of a chunk have similar ones, and a rest, which is stored
// as it is. The code of a float is its exponent. An integer is all code.
template <typename WordT, u32 code_bits, u32 code_at>
struct Floating {
  typedef WordT Word;
  typedef u32 Field; // holds a code or a rest
  static constexpr bool kFloat = true;
  static constexpr u32 kBits = 8 * sizeof(Word);
  static constexpr u32 kCode = code_bits;
  static constexpr u32 kRest = kBits - kCode;
  static constexpr u32 kCodes = (1u << code_bits) - 1;
  static constexpr u32 kMantissas = (1u << code_at) - 1;

  static LMS_DEVICE u32 code(Word word) {
    return word >> code_at & kCodes;
  }
  static LMS_DEVICE u32 rest(Word word) {
    return (word & kMantissas) | word >> (kBits - 1) << code_at;
  }
  static LMS_DEVICE Word join(u32 code, u32 rest) {
    return Word((rest & kMantissas) | code << code_at | rest >> code_at << (kBits - 1));
  }
};

// `flip` is what makes the order of integers with a sign that of integers without one.
template <typename WordT, typename FieldT, u64 flip>
struct Integer {
  typedef WordT Word;
  typedef FieldT Field;
  static constexpr bool kFloat = false;
  static constexpr u32 kBits = 8 * sizeof(Word);
  static constexpr u32 kCode = kBits;
  static constexpr u32 kRest = 0;

  static LMS_DEVICE Field code(Word word) {
    return word ^ Field(flip);
  }
  static LMS_DEVICE Field rest(Word) {
    return 0;
  }
  static LMS_DEVICE Word join(Field code, Field) {
    return Word(code ^ Field(flip));
  }
};

// The numbers are those of codec::Kind.
#if LMS_KIND == 1
typedef Floating<u16, 8, 7> Format; // bfloat16
#elif LMS_KIND == 2
typedef Floating<u16, 5, 10> Format; // float16
#elif LMS_KIND == 3
typedef Floating<u32, 8, 23> Format; // float32
#elif LMS_KIND == 4
typedef Floating<u8, 4, 3> Format; // float8 with 4 bits of exponent
#elif LMS_KIND == 5
typedef Floating<u8, 5, 2> Format; // float8 with 5 bits of exponent
#elif LMS_KIND == 6
typedef Integer<u64, u64, 1ull << 63> Format; // int64
#elif LMS_KIND == 7
typedef Integer<u32, u32, 1ull << 31> Format; // int32
#elif LMS_KIND == 8
typedef Integer<u16, u32, 1u << 15> Format; // int16
#elif LMS_KIND == 9
typedef Integer<u8, u32, 0> Format; // bytes, bool
#else
#error "LMS_KIND has to be the number of a kind"
#endif

typedef Format::Word Word;
typedef Format::Field Field;
constexpr u32 kWords = kChunk / sizeof(Word);

struct alignas(8 * sizeof(Word) < 16 ? 8 * sizeof(Word) : 16) Octet {
  Word words[8];
};

struct alignas(16) Scratch {
  Octet data[kWords / 8]; // a chunk
  ulonglong2 packed[kChunk / 16];
};

// Each lane has every 32nd vector of a chunk.
struct Vectors {
  ulonglong2 own[kVectors];
};

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

template <u32 bits>
struct Width {
  static constexpr u32 kBits = bits;
};

template <u32 width, typename Piece>
LMS_INLINE void pieces_of(const Body& body, u32 octet, u32& at, Piece& piece) {
  if (Format::kRest & width) {
    piece(at + octet * width, false, Format::kRest & (width - 1), Width<width>());
    at += body.octets * width;
  }
  if (width <= Format::kCode && (body.width & width) != 0) {
    piece(at + octet * width, true, body.width & (width - 1), Width<width>());
    at += body.octets * width;
  }
}

// Calls piece(offset of the octet's piece, whether it is of the code, shift, Width<bits>).
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

LMS_INLINE void write_fields(Scratch& scratch, const Body& body, Field base) {
  char* const packed = reinterpret_cast<char*>(scratch.packed);
  Lanes<u64> odd;
  Lanes<u32> count;
  each_lane([&](u32 lane) {
    odd[lane] = 0;
    u32 turn = 0;
    for (u32 octet = lane; octet < body.octets; octet += 32, ++turn) {
      const Octet from = scratch.data[octet];
      Field codes[8];
      Field rests[8];
      u32 mine = 0;
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        codes[i] = Format::code(from.words[i]) - base;
        rests[i] = Format::rest(from.words[i]);
        if (Format::kFloat) {
          mine |= u32(codes[i] >> body.width != 0) << i;
        }
      }
      if (Format::kFloat) {
        odd[lane] |= u64(mine) << (8 * turn);
      }
      each_piece(body, octet, [&](u32 at, bool code, u32 shift, auto width) {
        constexpr u32 bits = decltype(width)::kBits;
        if (code) {
          put<bits>(packed + at, codes, shift);
        } else {
          put<bits>(packed + at, rests, shift);
        }
      });
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

LMS_INLINE void read_fields(Scratch& scratch, const Body& body, Field base) {
  const char* const packed = reinterpret_cast<const char*>(scratch.packed);
  each_lane([&](u32 lane) {
    for (u32 octet = lane; octet < body.octets; octet += 32) {
      Field codes[8] = {};
      Field rests[8] = {};
      each_piece(body, octet, [&](u32 at, bool code, u32 shift, auto width) {
        constexpr u32 bits = decltype(width)::kBits;
        if (code) {
          get<bits>(packed + at, codes, shift);
        } else {
          get<bits>(packed + at, rests, shift);
        }
      });
      Octet to;
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        to.words[i] = Format::join(codes[i] + base, rests[i]);
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

LMS_INLINE Word* words_of(Scratch& scratch) {
  return scratch.data[0].words;
}

// Moves the values that are not zero to the front, and writes the bitmap. The last octet is packed as
// a whole, so it is filled.
LMS_INLINE void squeeze(Scratch& scratch, Word filler) {
  Word* const words = words_of(scratch);
  u32* const bitmap = reinterpret_cast<u32*>(scratch.packed);
  u32 done = 0;
  for (u32 first = 0; first < kWords; first += 32) {
    Lanes<Word> word;
    Lanes<bool> kept;
    each_lane([&](u32 lane) {
      word[lane] = words[first + lane];
      kept[lane] = word[lane] != 0;
    });
    const u32 mask = ballot(kept);
    each_lane([&](u32 lane) {
      if (kept[lane]) {
        words[done + ones(mask & ((1u << lane) - 1))] = word[lane];
      }
      if (lane == 0) {
        bitmap[first / 32] = mask;
      }
    });
    done += ones(mask);
  }
  each_lane([&](u32 lane) {
    if (done + lane < (done + 7) / 8 * 8) {
      words[done + lane] = filler;
    }
  });
}

// The reverse, from the last value to the first one, so that no value is overwritten before it is
// moved.
LMS_INLINE void spread(Scratch& scratch, u32 count) {
  Word* const words = words_of(scratch);
  const u32* const bitmap = reinterpret_cast<const u32*>(scratch.packed);
  u32 left = count;
  for (u32 first = kWords; first > 0; first -= 32) {
    const u32 mask = bitmap[first / 32 - 1];
    left -= ones(mask);
    Lanes<Word> word;
    each_lane([&](u32 lane) {
      const u32 rank = left + ones(mask & ((1u << lane) - 1));
      word[lane] = (mask >> lane & 1) != 0 ? words[rank % kWords] : Word(0);
    });
    each_lane([&](u32 lane) { words[first - 32 + lane] = word[lane]; });
  }
}

// How to pack floats: the width of codes, and whether zeros are left out. Codes are offsets from
// `base`, so that the largest code has the largest offset. Small values that are out of range are
// odd: their codes are stored beside, with their indices.
LMS_INLINE Head plan_floats(Scratch& scratch) {
  Lanes<u32> lane_count;
  Lanes<u32> lane_least; // of the codes' complements
  each_lane([&](u32 lane) {
    u32 count = 0;
    u32 high = 0;
    for (u32 octet = lane; octet < kWords / 8; octet += 32) {
      const Octet from = scratch.data[octet];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        const Word word = from.words[i];
        const u32 code = u32(Format::code(word));
        count += word != 0;
        high = code > high ? code : high; // that of zero is 0, the smallest one
      }
    }
    lane_count[lane] = count;
    lane_least[lane] = ~high;
  });
  const u32 count = sum(lane_count);
  const u32 high = ~least(lane_least);

  // How many values have an offset from the largest code of how many bits, in a byte of each lane
  // (1 to 8 bits; the others are not odd in any case).
  Lanes<u32> lane_lengths[4];
  each_lane([&](u32 lane) {
    u64 lengths = 0;
    for (u32 octet = lane; octet < kWords / 8; octet += 32) {
      const Octet from = scratch.data[octet];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        const Word word = from.words[i];
        const u32 bits = length(u32(high - Format::code(word)));
        lengths += word != 0 && bits != 0 ? u64(1) << (8 * bits - 8) : 0;
      }
    }
    const u64 even = lengths & 0x00ff00ff00ff00ffull;
    const u64 uneven = lengths >> 8 & 0x00ff00ff00ff00ffull;
    lane_lengths[0][lane] = u32(even);
    lane_lengths[1][lane] = u32(even >> 32);
    lane_lengths[2][lane] = u32(uneven);
    lane_lengths[3][lane] = u32(uneven >> 32);
  });
  u32 lengths[4];
  LMS_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    lengths[i] = sum(lane_lengths[i]);
  }

  // Each lane looks at one of the choices.
  Lanes<u32> cost; // bytes, and then the choice
  each_lane([&](u32 lane) {
    const u32 width = lane % 16;
    const bool sparse = lane >= 16;
    u32 odd = 0;
    LMS_UNROLL
    for (u32 bits = 1; bits <= 8; ++bits) {
      const u32 pair = lengths[(bits + 1) % 2 * 2 + (bits - 1) / 4];
      odd += bits > width ? pair >> ((bits - 1) / 2 % 2 * 16) & 0xffff : 0;
    }
    if (!sparse && length(high) > width) {
      odd += kWords - count; // zeros
    }
    const u32 values = sparse ? count : kWords;
    const u32 bitmap = sparse ? kWords / 8 : 0;
    const u32 bytes = bitmap + (values + 7) / 8 * (Format::kRest + width) + 3 * odd + 1;
    const bool possible =
        width <= Format::kCode && odd < 256 && (sparse ? count > 0 && count < kWords : true);
    cost[lane] = possible ? bytes << 16 | odd << 8 | lane : ~0u;
  });
  const u32 best = least(cost);
  const u32 width = best % 16;
  Head head{0, best >> 4 & 1 ? count : kWords, width, 0, best >> 8 & 255};
  const u32 range = (1u << width) - 1;
  head.base = high > range ? high - range : 0;
  if (count == 0) {
    head = Head{0, 0, 0, 0, 0};
  } else if ((best >> 16) > kMost) {
    head.width = kRaw;
  }
  return head;
}

LMS_INLINE Head plan_integers(Scratch& scratch, Field* base) {
  Lanes<Field> low;
  Lanes<Field> high; // complements
  each_lane([&](u32 lane) {
    Field smallest = ~Field(0);
    Field largest = 0;
    for (u32 octet = lane; octet < kWords / 8; octet += 32) {
      const Octet from = scratch.data[octet];
      LMS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        const Field code = Format::code(from.words[i]);
        smallest = code < smallest ? code : smallest;
        largest = code > largest ? code : largest;
      }
    }
    low[lane] = smallest;
    high[lane] = ~largest;
  });
  *base = least(low);
  const u32 width = length(Field(~least(high) - *base));
  Head head{0, width, 0, sizeof(Word) == 1 ? u32(*base) : 0, 0};
  if (body_of(head).size > kMost) {
    head.width = kRaw;
  }
  return head;
}

// A chunk in `scratch.data` to `scratch.packed`, unless the head says that it is raw.
LMS_INLINE Head pack_chunk(Scratch& scratch) {
  Field base = 0;
  const Head head = Format::kFloat ? plan_floats(scratch) : plan_integers(scratch, &base);
  if (head.width == kRaw) {
    return head;
  }
  const Body body = body_of(head);
  each_lane([&](u32 lane) {
    // Without garbage between the parts, the same bytes are always packed to the same bytes.
    for (u32 v = lane; v < (body.size + 15) / 16; v += 32) {
      scratch.packed[v].x = scratch.packed[v].y = 0;
    }
  });
  if (Format::kFloat) {
    base = Field(head.base);
    if (body.bitmap != 0) {
      squeeze(scratch, Format::join(base, 0)); // which is not odd
    }
  } else if (body.base != 0) {
    each_lane([&](u32 lane) {
      if (lane == 0) {
        scratch.packed[0].x = base;
        scratch.packed[0].y = 0;
      }
    });
  }
  write_fields(scratch, body, base);
  return head;
}

// The reverse, if the chunk is packed.
LMS_INLINE void unpack_chunk(Scratch& scratch, const Head& head) {
  const Body body = body_of(head);
  if (Format::kFloat && head.count == 0) {
    each_lane([&](u32 lane) {
      for (u32 octet = lane; octet < kWords / 8; octet += 32) {
        scratch.data[octet] = Octet();
      }
    });
    return;
  }
  const Field base = body.base != 0 ? Field(scratch.packed[0].x) : Field(head.base);
  read_fields(scratch, body, base);
  if (body.bitmap != 0) {
    spread(scratch, head.count);
  }
}

struct Bytes {
  const char* data; // device memory, aligned to 16 bytes
  u64 size;
};

struct Target {
  char* data; // device memory, aligned to 16 bytes
  u64 size;
};

struct Part {
  char* data; // pinned host memory
  u64 size;
};

struct Parts {
  u64 count;
  Part part[8];
};
static_assert(sizeof(Parts) == 136, "as in kernels.h");

struct Tally {
  u64 packed; // bytes
  u64 raw; // chunks
  u64 done; // warps
};
static_assert(sizeof(Tally) == 24, "as in kernels.h");

// Neither a line nor a slot is in two parts.
LMS_INLINE char* address(const Parts& parts, u64 offset) {
  u32 i = 0;
  while (i + 1 < parts.count && offset >= parts.part[i].size) {
    offset -= parts.part[i++].size;
  }
  return parts.part[i].data + offset;
}

LMS_INLINE u64 line_of(u64 group) {
  return kLine + group * kLine; // the first line is the summary
}

LMS_INLINE u64 slots_of(u64 chunks) {
  const u64 lines = 1 + (chunks + kGroup - 1) / kGroup;
  return (lines * kLine + kChunk - 1) / kChunk * kChunk;
}

LMS_INLINE const ulonglong2* vectors_at(const char* bytes) {
  return reinterpret_cast<const ulonglong2*>(bytes);
}

// Loads the first `count` vectors at the address.
LMS_INLINE void load(Lanes<Vectors>& vectors, const ulonglong2* at, u32 count) {
  each_lane([&](u32 lane) {
    LMS_UNROLL
    for (u32 v = 0; v < kVectors; ++v) {
      if (v * 32 + lane < count) {
        vectors[lane].own[v] = __ldcs(at + v * 32 + lane);
      }
    }
  });
}

LMS_INLINE void store(ulonglong2* to, Lanes<Vectors>& vectors, u32 count) {
  each_lane([&](u32 lane) {
    LMS_UNROLL
    for (u32 v = 0; v < kVectors; ++v) {
      if (v * 32 + lane < count) {
        to[v * 32 + lane] = vectors[lane].own[v];
      }
    }
  });
}

LMS_INLINE void copy(ulonglong2* to, const ulonglong2* at, u32 count) {
  each_lane([&](u32 lane) {
    for (u32 v = lane; v < count; v += 32) {
      to[v] = at[v];
    }
  });
}

// The last bytes, which are not a whole chunk. A slot has room for whole vectors.
LMS_INLINE void copy_rest_out(char* to, const char* at, u32 size) {
  each_lane([&](u32 lane) {
    for (u32 v = lane; v < (size + 15) / 16; v += 32) {
      ulonglong2 words;
      words.x = words.y = 0;
      for (u32 i = 0; i < 16 && v * 16 + i < size; ++i) {
        const u64 byte = u8(at[v * 16 + i]);
        (i < 8 ? words.x : words.y) |= byte << (i % 8 * 8);
      }
      reinterpret_cast<ulonglong2*>(to)[v] = words;
    }
  });
}

LMS_INLINE void copy_rest_in(char* to, const char* at, u32 size) {
  each_lane([&](u32 lane) {
    for (u32 byte = lane; byte < size; byte += 32) {
      to[byte] = at[byte];
    }
  });
}

extern "C" __global__ void __launch_bounds__(LMS_THREADS, 2)
lms_pack(Bytes source, Parts host, Tally* tally) {
  __shared__ Scratch scratches[kWarps];
  Scratch& scratch = scratches[threadIdx.x / 32];
  ulonglong2* const data = reinterpret_cast<ulonglong2*>(scratch.data);
  const u64 warp = u64(blockIdx.x) * kWarps + threadIdx.x / 32;
  const u64 warps = u64(gridDim.x) * kWarps;
  const u64 whole = source.size / kChunk;
  const u64 chunks = (source.size + kChunk - 1) / kChunk;
  const u64 slots = slots_of(chunks);

  u64 packed = 0;
  u64 raw = 0;
  Lanes<Vectors> ahead;
  if (warp * kGroup < whole) {
    load(ahead, vectors_at(source.data + warp * kGroup * kChunk), kChunk / 16);
  }
  for (u64 group = warp; group * kGroup < chunks; group += warps) {
    const u64 left = chunks - group * kGroup;
    const u32 here = left < kGroup ? u32(left) : kGroup;
    Lanes<u64> heads;
    for (u32 i = 0; i < here; ++i) {
      const u64 chunk = group * kGroup + i;
      const u64 offset = slots + chunk * kChunk;
      char* const slot = address(host, offset);
      Head head{0, 0, kRaw, 0, 0};
      u32 used = 0; // bytes of the slot
      if (chunk < whole) {
        store(data, ahead, kChunk / 16);
        const u64 next = i + 1 < here ? chunk + 1 : (group + warps) * kGroup;
        if (next < whole) {
          load(ahead, vectors_at(source.data + next * kChunk), kChunk / 16);
        }
        head = pack_chunk(scratch);
        used = (body_of(head).size + 15) / 16 * 16;
        copy(
            reinterpret_cast<ulonglong2*>(slot),
            head.width == kRaw ? data : scratch.packed,
            used / 16);
      } else {
        const u32 rest = u32(source.size - chunk * kChunk);
        copy_rest_out(slot, source.data + chunk * kChunk, rest);
        used = (rest + 15) / 16 * 16;
      }
      LMS_WRITES(slot, used);
      packed += used;
      raw += head.width == kRaw;
      head.where = u32(offset / 16);
      const u64 word = head.word();
      each_lane([&](u32 lane) {
        if (lane == i) {
          heads[lane] = word;
        }
      });
    }
    u64* const line = reinterpret_cast<u64*>(address(host, line_of(group)));
    LMS_WRITES(line, here * sizeof(u64));
    each_lane([&](u32 lane) {
      if (lane < here) {
        line[lane] = heads[lane];
      }
    });
    packed += here * sizeof(u64);
  }

  if (threadIdx.x % 32 != 0) {
    return;
  }
  atomicAdd(&tally->packed, packed);
  atomicAdd(&tally->raw, raw);
  __threadfence();
  if (atomicAdd(&tally->done, u64(1)) != warps - 1) {
    return;
  }
  __threadfence();
  // The last warp writes the summary, and resets the tally for the next launch.
  u64* const summary = reinterpret_cast<u64*>(host.part[0].data);
  LMS_WRITES(summary, 2 * sizeof(u64));
  summary[0] = atomicExch(&tally->packed, u64(0));
  summary[1] = atomicExch(&tally->raw, u64(0));
  tally->done = 0;
}

LMS_INLINE void load_heads(Lanes<u64>& heads, const Parts& host, u64 group, u64 chunks) {
  const u64* const line = reinterpret_cast<const u64*>(address(host, line_of(group)));
  const u64 left = chunks - group * kGroup;
  LMS_READS(line, (left < kGroup ? left : kGroup) * sizeof(u64));
  each_lane([&](u32 lane) { heads[lane] = lane < kGroup && lane < left ? __ldcs(line + lane) : 0; });
}

// Loads what is in the slot of a whole chunk.
LMS_INLINE void load_slot(Lanes<Vectors>& vectors, const Parts& host, const Head& head) {
  const u32 used = (body_of(head).size + 15) / 16;
  const char* const slot = address(host, u64(head.where) * 16);
  LMS_READS(slot, used * 16);
  load(vectors, vectors_at(slot), used);
}

extern "C" __global__ void __launch_bounds__(LMS_THREADS, 2)
lms_unpack(Target target, Parts host) {
  __shared__ Scratch scratches[kWarps];
  Scratch& scratch = scratches[threadIdx.x / 32];
  ulonglong2* const data = reinterpret_cast<ulonglong2*>(scratch.data);
  const u64 warp = u64(blockIdx.x) * kWarps + threadIdx.x / 32;
  const u64 warps = u64(gridDim.x) * kWarps;
  const u64 whole = target.size / kChunk;
  const u64 chunks = (target.size + kChunk - 1) / kChunk;
  if (warp * kGroup >= chunks) {
    return;
  }

  Lanes<u64> heads;
  Lanes<u64> next_heads;
  Lanes<Vectors> ahead;
  load_heads(heads, host, warp, chunks);
  if (warp * kGroup < whole) {
    load_slot(ahead, host, Head::of(from(heads, 0)));
  }
  for (u64 group = warp; group * kGroup < chunks; group += warps) {
    const u64 left = chunks - group * kGroup;
    const u32 here = left < kGroup ? u32(left) : kGroup;
    if ((group + warps) * kGroup < chunks) {
      load_heads(next_heads, host, group + warps, chunks);
    }
    for (u32 i = 0; i < here; ++i) {
      const u64 chunk = group * kGroup + i;
      const Head head = Head::of(from(heads, i));
      char* const to = target.data + chunk * kChunk;
      if (chunk >= whole) {
        const u32 rest = u32(target.size - chunk * kChunk);
        const char* const slot = address(host, u64(head.where) * 16);
        LMS_READS(slot, rest);
        copy_rest_in(to, slot, rest);
        break;
      }
      const u32 used = (body_of(head).size + 15) / 16;
      store(head.width == kRaw ? data : scratch.packed, ahead, used);
      const u64 next = i + 1 < here ? chunk + 1 : (group + warps) * kGroup;
      if (next < whole) {
        load_slot(ahead, host, Head::of(i + 1 < here ? from(heads, i + 1) : from(next_heads, 0)));
      }
      if (head.width != kRaw) {
        unpack_chunk(scratch, head);
      }
      copy(reinterpret_cast<ulonglong2*>(to), data, kChunk / 16);
    }
    heads = next_heads;
  }
}
)cuda";

} // namespace

std::string source(Kind kind) {
  return "#define LMS_KIND " + std::to_string(static_cast<int>(kind)) + "\n" + kText;
}

} // namespace torch::cuda::lms::codec
