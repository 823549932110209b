#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec::text {

// How fast kernels write to host memory.
//
// The link takes stores as fast as kernels issue them, until it is full. Then they wait in the
// memory system, and the stores of operators behind them. On an H200, convolutions beside a kernel
// that fills the link take 8 ms longer for each GB of data, and 1 ms beside one that leaves some of
// it (docs/results/2026-11-29-beside.md). So chunks take turns, which are as long as the link needs
// for them, and a little longer. All warps use one counter.
const char* const kPace = R"cuda(
struct Pace {
  u64* next; // on the device: when the next turn begins, in ns
  u64 duration; // of the turn of 1 MiB, in ns; 0: nobody waits

  // Returns when the turn for this many bytes begins, as nanoseconds() modulo 2^32. Time that nobody
  // has used is lost, because who makes up for it fills the link.
  LMS_DEVICE u32 take(u32 bytes) const {
    if (duration == 0) {
      return 0;
    }
    const u64 now = nanoseconds();
    const u64 turn = atomicAdd(next, bytes * duration >> 20);
    if (turn + duration / 8 < now) {
      atomicMax(next, now);
    } else if (now + 4 * duration < turn) {
      // The turns of all warps are shorter, so the clock has been set back.
      atomicExch(next, now);
      return u32(now);
    }
    return u32(turn);
  }

  LMS_DEVICE void wait(u32 turn) const {
    constexpr u32 kNaps = 256; // some wait too short, but none forever
    if (duration == 0) {
      return;
    }
    for (u32 i = 0; i < kNaps && int(turn - u32(nanoseconds())) > 0; ++i) {
      nap();
    }
  }
};
)cuda";

} // namespace torch::cuda::lms::codec::text
