#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec::text {

// The hash is the sum over all strands. A strand is what a lane has of a chunk when a warp loads
// it: every 32nd of its vectors of 16 bytes. The words of a vector are added to two lanes. The step
// that adds a word is a bijection both of the lane and of the word, so a single changed word always
// changes the lane. The shift moves the highest bits, which the multiplication does not mix, to the
// low ones; without it, two flipped signs would cancel out. At the end, the position is added to
// one lane, and then the other lane to that: without a step in between, the same bit that has
// flipped in the last words of both would cancel out. So the hash, which is the sum of the results,
// depends neither on the order in which strands are hashed nor on who hashes them.
const char* const kHash = R"cuda(
struct Slot {
  u64 expected;
  u64 sum;
  u64 pieces;
  u32 done;
  u32 differs;
};
static_assert(sizeof(Slot) == 32, "as in hash.h");

constexpr u32 kStrands = 32; // of a chunk
constexpr u32 kStrandVectors = 4;
constexpr u32 kHashed = kStrands * kStrandVectors * 16; // bytes of a chunk

LMS_INLINE u64 step(u64 lane, u64 word) {
  lane = (lane ^ word) * 0xd6e8feb86659fd93ull;
  return lane ^ (lane >> 29);
}

// Every bit of the result depends on every bit of the value.
LMS_INLINE u64 mix(u64 value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

struct Strand {
  u64 low = 1;
  u64 high = 2;

  LMS_DEVICE void add(ulonglong2 vector) {
    low = step(low, vector.x);
    high = step(high, vector.y);
  }
  // Of strand `index` of the chunk.
  LMS_DEVICE u64 result(u64 chunk, u32 index) const {
    const u64 position = chunk * kStrands + index + 1;
    return mix(step(step(low, position * 0x9e3779b97f4a7c15ull), high));
  }
};

LMS_INLINE u64 hash_of(u64 sum, u64 bytes) {
  return mix(sum ^ bytes);
}

// Adds one of the shares of the sum. Returns true for the last one, and resets the slot for the next
// launch.
LMS_INLINE bool added(Slot* slot, u64 share, u32 shares, u64 bytes, u64* hash) {
  atomicAdd(&slot->sum, share);
  __threadfence();
  if (atomicAdd(&slot->done, 1u) != shares - 1) {
    return false;
  }
  __threadfence();
  *hash = hash_of(atomicExch(&slot->sum, u64(0)), bytes);
  slot->done = 0;
  return true;
}

// The hash of what is on the way to the host.
LMS_INLINE void expect(Slot* slot, u64 hash) {
  slot->expected = hash;
  slot->differs = 0;
}

// The hash of what has come back. `corrupted` is in pinned host memory, where it can be read although
// the device has stopped.
LMS_INLINE void confirm(const Slot* slot, u64 hash, u32* corrupted) {
  if (slot->expected != hash) {
    *const_cast<volatile u32*>(corrupted) = 1;
    __threadfence_system();
    __trap();
  }
}
)cuda";

} // namespace torch::cuda::lms::codec::text
