#include <torch/csrc/cuda/lms/codec/text.h>

namespace torch::cuda::lms::codec::text {

// How fast kernels write to host memory.
//
// The link takes stores as fast as kernels issue them, until it is full. Then they wait in the
// memory system, and the stores of operators behind them. On an H200, convolutions beside a kernel
// that fills the link take 8 ms longer for each GB of data, and 1 ms beside one that leaves some of
// it (docs/results/2026-11-29-beside.md).
//
// So each warp writes by a schedule of its own, which has a chunk at most every few microseconds. A
// wait that was too long makes the next one shorter: naps take about as long as a warp needs for a
// chunk. On an H200, kernels write what they may so (docs/results/2026-11-30-profile.md).
const char* const kPace = R"cuda(
struct Pace {
  u64 duration; // of 1 MiB of this warp, in ns; 0: it never waits
  u32 due; // when the warp may write, as nanoseconds() modulo 2^32

  // The time of 1 MiB of all warps; this one's number, and how many there are. They begin one after
  // the other, so that they do not write at the same time.
  LMS_DEVICE Pace(u64 all, u64 warp, u64 warps)
      : duration(all * warps), due(all == 0 ? 0 : u32(nanoseconds() + warp * (kChunk * all >> 20))) {}

  // Waits until a chunk of this many bytes may be written.
  LMS_DEVICE void wait(u32 bytes) {
    constexpr u32 kNaps = 256; // some wait too short, but none forever
    if (duration == 0) {
      return;
    }
    const u32 most = u32(kChunk * duration >> 20);
    u32 now = u32(nanoseconds());
    if (int(due - now) > int(most)) {
      due = now; // the clock has been set back
    }
    for (u32 i = 0; i < kNaps && int(due - now) > 0; ++i) {
      nap();
      now = u32(nanoseconds());
    }
    // What the warp did not use before is lost, because who makes up for it fills the link. But a
    // nap, and a tick of the clock, may have taken longer than a chunk.
    const u32 late = most + 2048;
    if (int(now - due) > int(late)) {
      due = now - late;
    }
    due += u32(bytes * duration >> 20);
  }
};
)cuda";

} // namespace torch::cuda::lms::codec::text
