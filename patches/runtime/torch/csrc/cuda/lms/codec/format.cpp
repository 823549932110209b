#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec::text {

// What is a value, for each kind of data.
const char* const kFormat = R"cuda(
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
  static constexpr u32 kCodeAt = code_at;
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
  static constexpr u32 kCodeAt = 0; // these three are not used
  static constexpr u32 kCodes = 0;
  static constexpr u32 kMantissas = 0;

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
  union {
    Word words[8];
    u32 parts[2 * sizeof(Word)]; // the same
  };

  LMS_DEVICE u32 part(u32 i) const {
    return parts[i % (2 * sizeof(Word))];
  }
  LMS_DEVICE u32& part(u32 i) {
    return parts[i % (2 * sizeof(Word))];
  }
};

struct alignas(16) Scratch {
  Octet data[kWords / 8]; // a chunk
  ulonglong2 packed[kChunk / 16];
};

// Each lane has every 32nd vector of a chunk.
struct Vectors {
  ulonglong2 own[kVectors];
};
)cuda";

} // namespace torch::cuda::lms::codec::text
