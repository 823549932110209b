#include <torch/csrc/cuda/lms/kernel/checksum.h>

namespace torch::cuda::lms::checksum {

namespace {

// The simulated device compiles this code for the CPU, too, with blocks of one thread. It finds the
// memory that a kernel uses from the pointers among the parameters and in Bytes. Writes to other
// memory have to be declared with LMS_WRITES.
//
// The hash: a thread loads 16 bytes at a time, and their words are added to four lanes in turn. The
// step that adds a word is a bijection both of the lane and of the word, so a single changed word
// always changes the lane. The shift moves the highest bits, which the multiplication does not mix,
// to the low ones; without it, two flipped signs would cancel out. At the end of a tile, the
// thread's result is mixed with its position and added to the sum. So the hash depends neither on
// the order in which blocks run nor on their number, and hash and check can use different numbers
// of blocks.
constexpr char kText[] = R"cuda(
#ifndef LMS_THREADS
#define LMS_THREADS 256
#define LMS_WRITES(pointer, size)
#endif

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 kThreads = LMS_THREADS;
constexpr u32 kWarps = (kThreads + 31) / 32;
constexpr u32 kVectors = 32; // of each thread, per tile
constexpr u32 kAhead = 8; // vectors that are loaded before the first one is used
constexpr u64 kTile = u64(kThreads) * kVectors;

struct Bytes {
  const char* data;
  u64 size;
};

struct Slot {
  u64 expected;
  u64 sum;
  u32 done;
  u32 differs;
};
static_assert(sizeof(Slot) == 24, "as in checksum.h");

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

__device__ inline u64 step(u64 lane, u64 word) {
  lane = (lane ^ word) * 0xd6e8feb86659fd93ull;
  return lane ^ (lane >> 29);
}

// Every bit of the result depends on every bit of the value.
__device__ inline u64 mix(u64 value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

struct Lanes {
  u64 a = 1, b = 2, c = 3, d = 4;

  __device__ inline void even(ulonglong2 vector) {
    a = step(a, vector.x);
    b = step(b, vector.y);
  }
  __device__ inline void odd(ulonglong2 vector) {
    c = step(c, vector.x);
    d = step(d, vector.y);
  }
  __device__ inline u64 result(u64 position) const {
    return mix(step(step(step(a, b), c), d) ^ ((position + 1) * 0x9e3779b97f4a7c15ull));
  }
};

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

// The sum over the tiles of the calling thread.
__device__ inline u64 hash_share(const Bytes& bytes) {
  const u64 vectors = (bytes.size + 15) / 16;
  const u64 whole = aligned(bytes.data) ? bytes.size / 16 : 0;
  u64 sum = 0;
  for (u64 tile = blockIdx.x; tile * kTile < vectors; tile += gridDim.x) {
    Lanes lanes;
    const u64 first = tile * kTile + threadIdx.x;
    if ((tile + 1) * kTile <= whole) {
      const ulonglong2* const from = reinterpret_cast<const ulonglong2*>(bytes.data) + first;
      for (u32 i = 0; i < kVectors; i += kAhead) {
        ulonglong2 loaded[kAhead];
#pragma unroll
        for (u32 j = 0; j < kAhead; ++j) {
          loaded[j] = __ldcs(from + (i + j) * kThreads);
        }
#pragma unroll
        for (u32 j = 0; j < kAhead; j += 2) {
          lanes.even(loaded[j]);
          lanes.odd(loaded[j + 1]);
        }
      }
    } else {
      for (u32 i = 0; i < kVectors; ++i) {
        const u64 vector = first + u64(i) * kThreads;
        if (vector >= vectors) {
          break;
        }
        const ulonglong2 loaded = vector < whole
            ? __ldcs(reinterpret_cast<const ulonglong2*>(bytes.data) + vector)
            : gather(bytes, vector);
        if (i % 2 == 0) {
          lanes.even(loaded);
        } else {
          lanes.odd(loaded);
        }
      }
    }
    sum += lanes.result(first);
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

// Returns true in one thread of the launch: in the block that finishes last. It resets the slot for
// the next launch.
__device__ inline bool hashed(const Bytes& bytes, Slot* slot, u64* hash) {
  const u64 share = block_sum(hash_share(bytes));
  if (threadIdx.x != 0) {
    return false;
  }
  atomicAdd(&slot->sum, share);
  __threadfence();
  if (atomicAdd(&slot->done, 1u) != gridDim.x - 1) {
    return false;
  }
  __threadfence();
  *hash = mix(atomicExch(&slot->sum, u64(0)) ^ bytes.size);
  slot->done = 0;
  return true;
}

// Four blocks per multiprocessor: without this bound, the compiler uses so few registers that a
// thread cannot load ahead.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
lms_hash(Bytes bytes, Slot* slot) {
  u64 hash;
  if (hashed(bytes, slot, &hash)) {
    slot->expected = hash;
    slot->differs = 0;
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

// `corrupted` is in pinned host memory, where it can be read although the device has stopped.
extern "C" __global__ void __launch_bounds__(kThreads, 4)
lms_arrived(Bytes bytes, Slot* slot, u32* corrupted) {
  u64 hash;
  if (hashed(bytes, slot, &hash) && slot->expected != hash) {
    *const_cast<volatile u32*>(corrupted) = 1;
    __threadfence_system();
    __trap();
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

const KernelSource kSource{"checksum", kText};

} // namespace torch::cuda::lms::checksum
