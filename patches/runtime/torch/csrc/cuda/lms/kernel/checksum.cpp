#include <torch/csrc/cuda/lms/kernel/checksum.h>

#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::checksum {

namespace {

// The simulated device compiles this code for the CPU, too, with blocks of one thread. It finds the
// memory that a kernel uses from the pointers among the parameters and in Bytes. Writes to other
// memory have to be declared with LMS_WRITES.
constexpr char kBefore[] = R"cuda(
#ifndef LMS_THREADS
#define LMS_THREADS 256
#define LMS_WRITES(pointer, size)
#endif
#define LMS_DEVICE __device__ inline
#define LMS_INLINE __device__ inline

typedef unsigned int u32;
typedef unsigned long long u64;
)cuda";

constexpr char kText[] = R"cuda(
constexpr u32 kThreads = LMS_THREADS;
constexpr u32 kWarps = (kThreads + 31) / 32;
constexpr u32 kAhead = 2; // strands that are loaded before the first one is used
// Strands in a row that a thread takes. On a GPU, a warp's threads read a line of the cache together;
// the only thread of a block would read each line again for each strand that is in it.
constexpr u32 kInARow = kThreads == 1 ? kStrands : 1;

struct Bytes {
  const char* data;
  u64 size;
};

struct Report {
  u32* caught;
  u32* changed;
};

struct Part {
  char* data;
  u64 offset;
  u64 size;
};

struct Parts {
  u64 count;
  Part part[8];
};
static_assert(sizeof(Parts) == 200, "as in checksum.h");

__device__ inline bool aligned(const void* pointer) {
  return (reinterpret_cast<u64>(pointer) & 15) == 0;
}

// Strands have consecutive numbers.
__device__ inline u64 vector_of(u64 strand, u32 v) {
  return strand / kStrands * (kStrands * kStrandVectors) + v * kStrands + strand % kStrands;
}

__device__ inline u64 result(const Strand& strand, u64 number) {
  return strand.result(number / kStrands, u32(number % kStrands));
}

// Loads bytes that are not aligned, or the last bytes, followed by zeros.
__device__ inline ulonglong2 gather(const Bytes& bytes, u64 vector) {
  const u64 begin = vector * 16;
  const u64 left = bytes.size - begin;
  ulonglong2 words;
  words.x = words.y = 0;
  for (u32 i = 0; i < 16 && i < left; ++i) {
    const u64 byte = static_cast<unsigned char>(bytes.data[begin + i]);
    (i < 8 ? words.x : words.y) |= byte << (i % 8 * 8);
  }
  return words;
}

// The first strand of the calling thread.
__device__ inline u64 first_strand() {
  return (u64(blockIdx.x) * kThreads + threadIdx.x) * kInARow;
}

// The one that it takes after this one.
__device__ inline u64 strand_after(u64 strand) {
  if ((strand + 1) % kInARow != 0) {
    return strand + 1;
  }
  return strand - (kInARow - 1) + u64(gridDim.x) * kThreads * kInARow;
}

// The sum over the strands of the calling thread.
__device__ inline u64 hash_share(const Bytes& bytes) {
  const u64 vectors = (bytes.size + 15) / 16;
  const u64 strands = (bytes.size + kHashed - 1) / kHashed * kStrands;
  const u64 whole = aligned(bytes.data) ? bytes.size / kHashed * kStrands : 0; // strands
  const ulonglong2* const from = reinterpret_cast<const ulonglong2*>(bytes.data);
  u64 at = first_strand();
  u64 sum = 0;
  static_assert(kAhead == 2, "the loop takes two strands");
  while (strand_after(at) < whole) {
    const u64 taken[kAhead] = {at, strand_after(at)};
    ulonglong2 loaded[kAhead][kStrandVectors];
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) {
#pragma unroll
      for (u32 v = 0; v < kStrandVectors; ++v) {
        loaded[i][v] = __ldcs(from + vector_of(taken[i], v));
      }
    }
#pragma unroll
    for (u32 i = 0; i < kAhead; ++i) {
      Strand strand;
#pragma unroll
      for (u32 v = 0; v < kStrandVectors; ++v) {
        strand.add(loaded[i][v]);
      }
      sum += result(strand, taken[i]);
    }
    at = strand_after(taken[kAhead - 1]);
  }
  for (; at < strands; at = strand_after(at)) {
    Strand strand;
    for (u32 v = 0; v < kStrandVectors && vector_of(at, v) < vectors; ++v) {
      const u64 vector = vector_of(at, v);
      strand.add(at < whole ? __ldcs(from + vector) : gather(bytes, vector));
    }
    sum += result(strand, at);
  }
  return sum;
}

// Returns the sum over the block in thread 0.
__device__ inline u64 block_sum(u64 value) {
  __shared__ u64 warps[kWarps];
  for (u32 offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = value;
  }
  __syncthreads();
  for (u32 i = 1; i < kWarps; ++i) {
    value += threadIdx.x == 0 ? warps[i] : 0;
  }
  return value;
}

// Returns true in one thread of the launch: in the block that finishes last.
__device__ inline bool hashed(const Bytes& bytes, Slot* slot, u64* hash) {
  const u64 share = block_sum(hash_share(bytes));
  return threadIdx.x == 0 && added(slot, share, gridDim.x, bytes.size, hash);
}

// Four blocks per multiprocessor: without this bound, the compiler uses so few registers that a
// thread cannot load ahead.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
lms_hash(Bytes bytes, Slot* slot) {
  u64 hash;
  if (hashed(bytes, slot, &hash)) {
    expect(slot, hash);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
lms_check(Bytes bytes, Slot* slot, Report report) {
  u64 hash;
  if (!hashed(bytes, slot, &hash)) {
    return;
  }
  const bool differs = slot->expected != hash;
  slot->expected = hash;
  slot->differs = differs;
  if (differs) {
    // Not atomic, because most links do not support atomics on host memory. No other launch writes
    // this slot's count at the same time, and all launches write the same value to `changed`.
    volatile u32* const caught = report.caught;
    *caught = *caught + 1;
    __threadfence_system(); // the host must see the count before `changed`
    *const_cast<volatile u32*>(report.changed) = 1;
  }
}

extern "C" __global__ void
lms_restore(Bytes bytes, const Slot* slot, Parts parts) {
  if (slot->differs == 0) {
    return;
  }
  const u64 thread = u64(blockIdx.x) * kThreads + threadIdx.x;
  const u64 threads = u64(gridDim.x) * kThreads;
  for (u64 i = 0; i < parts.count; ++i) {
    const Part part = parts.part[i];
    const char* const from = bytes.data + part.offset;
    if (thread == 0) {
      LMS_WRITES(part.data, part.size);
    }
    u64 copied = 0;
    if (aligned(from) && aligned(part.data)) {
      const u64 vectors = part.size / 16;
      for (u64 at = thread; at < vectors; at += threads) {
        reinterpret_cast<ulonglong2*>(part.data)[at] =
            __ldcs(reinterpret_cast<const ulonglong2*>(from) + at);
      }
      copied = vectors * 16;
    }
    for (u64 at = copied + thread; at < part.size; at += threads) {
      part.data[at] = from[at];
    }
  }
}
)cuda";

} // namespace

std::string source() {
  return std::string(kBefore) + codec::text::kHash + kText;
}

} // namespace torch::cuda::lms::checksum
