#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec::text {

// A warp, and what its lanes do together.
//
// The same text is compiled for the CPU, by the simulated device and by the tests. There, a warp is
// a loop: what a lane keeps in a register is Lanes<T>, each_lane() runs a function for every lane,
// and only functions such as sum() combine what the lanes have. What one each_lane() writes to
// shared memory, the next one may read, because each of them ends with a barrier of the warp. In
// one each_lane(), no lane may depend on another one: with LMS_BACKWARD, lanes run in the other
// order.
const char* const kWarp = R"cuda(
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

#define LMS_WARPS (blockDim.x / 32) // of a thread block
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

LMS_INLINE u64 sum(Lanes<u64>& values) {
  u64 value = values.own;
  for (u32 other = 16; other > 0; other /= 2) {
    value += __shfl_xor_sync(~0u, value, other);
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
// Four of the bytes of two words: those of the first have the numbers 0 to 3. The selector has a
// digit for each, the lowest one for the lowest byte.
LMS_INLINE u32 bytes_of(u32 first, u32 second, u32 selector) {
  return __byte_perm(first, second, selector);
}
// The larger ones of the two halves of words.
LMS_INLINE u32 larger_halves(u32 a, u32 b) {
  return __vmaxu2(a, b);
}
LMS_INLINE u32 sum_of_bytes(u32 word) {
  return __dp4a(word, 0x01010101u, 0u);
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

LMS_INLINE u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
LMS_INLINE void nap() {
#if __CUDA_ARCH__ >= 700
  __nanosleep(256);
#endif
}

#else

#define LMS_WARPS 1
#ifndef LMS_READS
#define LMS_READS(pointer, size)
#endif
#ifndef LMS_NAPS
#define LMS_NAPS(nanoseconds)
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
  for (u32 i = 0; i < 32; ++i) {
#ifdef LMS_BACKWARD
    work(31 - i);
#else
    work(i);
#endif
  }
  asm volatile("" ::: "memory"); // other types may be read from the same memory from here on
}

template <typename T>
LMS_INLINE T from(Lanes<T>& values, u32 lane) {
  return values[lane % 32];
}

template <typename T>
LMS_INLINE T sum(Lanes<T>& values) {
  T total = 0;
  for (u32 lane = 0; lane < 32; ++lane) {
    total += values[lane];
  }
  return total;
}

template <typename T>
LMS_INLINE T least(Lanes<T>& values) {
  T value = values[0];
  for (u32 lane = 1; lane < 32; ++lane) {
    value = values[lane] < value ? values[lane] : value;
  }
  return value;
}

LMS_INLINE Lanes<u32> sum_before(Lanes<u32>& values) {
  Lanes<u32> sums;
  u32 total = 0;
  for (u32 lane = 0; lane < 32; ++lane) {
    sums[lane] = total;
    total += values[lane];
  }
  return sums;
}

LMS_INLINE u32 ones(u32 bits) {
  return __builtin_popcount(bits);
}
LMS_INLINE u32 bytes_of(u32 first, u32 second, u32 selector) {
  const u64 both = first | u64(second) << 32;
  u32 found = 0;
  for (u32 i = 0; i < 4; ++i) {
    found |= u32(both >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  }
  return found;
}
LMS_INLINE u32 larger_halves(u32 a, u32 b) {
  const u32 low = (a & 0xffff) > (b & 0xffff) ? a : b;
  const u32 high = (a >> 16) > (b >> 16) ? a : b;
  return (low & 0xffff) | (high & 0xffff0000u);
}
LMS_INLINE u32 sum_of_bytes(u32 word) {
  return (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24);
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

#ifndef LMS_NAP
#define LMS_NAP 256 // nanoseconds; nothing else takes time on the CPU
#endif
static u64 napped = 1000000000;
LMS_INLINE u64 nanoseconds() {
  return __atomic_load_n(&napped, __ATOMIC_RELAXED);
}
LMS_INLINE void nap() {
  LMS_NAPS(LMS_NAP);
  __atomic_fetch_add(&napped, LMS_NAP, __ATOMIC_RELAXED);
}

#endif

)cuda";

} // namespace torch::cuda::lms::codec::text
