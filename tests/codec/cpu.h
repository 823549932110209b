// What the text of the kernels needs to be compiled for the CPU, with one warp as a thread block.
#pragma once

#include <cstddef>
#include <cstdint>

struct Index {
  unsigned x, y, z;
};
static Index threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, gridDim{1, 1, 1};

struct ulonglong2 {
  unsigned long long x, y;
};

#define __global__
#define __shared__ static
#define __launch_bounds__(...)

// Bytes of host memory that the last launch has read and written.
static uint64_t host_read = 0, host_written = 0;
#define LMS_READS(pointer, size) host_read += (size)
#define LMS_WRITES(pointer, size) host_written += (size)

static inline void __threadfence() {}
static inline void __threadfence_system() {}
static inline void __trap() {}
template <typename T>
static T __ldcs(const T* from) {
  return *from;
}
template <typename T>
static T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}
template <typename T>
static T atomicMax(T* to, T value) {
  const T before = *to;
  *to = value > before ? value : before;
  return before;
}
template <typename T>
static T atomicExch(T* to, T value) {
  const T before = *to;
  *to = value;
  return before;
}

// The nanoseconds that packing has waited, and by how many the clock is set in its first nap.
static uint64_t waited = 0, clock_set = 0;
#define LMS_NAPS(nanoseconds) (napped += clock_set, clock_set = 0, waited += (nanoseconds))

// How each kind is called. `counts` gets the bytes of host memory that were read and written, and
// the nanoseconds that packing has waited. The last one has what the clock is set by before.
struct Call {
  char* const* parts;
  const uint64_t* sizes;
  uint64_t count;
  unsigned blocks;
  uint64_t pace; // ns for 1 MiB
  uint64_t* counts;
  void* slot; // Slot
};

template <typename Launch>
static void run(const Call& call, Launch launch) {
  host_read = host_written = 0;
  gridDim.x = call.blocks;
  for (blockIdx.x = 0; blockIdx.x < call.blocks; ++blockIdx.x) {
    launch();
  }
  call.counts[0] = host_read;
  call.counts[1] = host_written;
}

template <typename Parts>
static Parts parts_of(const Call& call) {
  Parts parts{};
  parts.count = call.count;
  for (uint64_t i = 0; i < call.count; ++i) {
    parts.part[i] = {call.parts[i], call.sizes[i]};
  }
  return parts;
}

// Packing returns whether the tally is zero again, and unpacking whether the hash is the expected
// one.
#define LMS_INTERFACE(kind)                                                              \
  extern "C" bool lms_pack_of_##kind(const char* data, uint64_t size, Call call) {       \
    Tally tally{};                                                                       \
    waited = 0;                                                                          \
    clock_set = call.counts[2];                                                          \
    const Parts parts = parts_of<Parts>(call);                                           \
    Slot* const slot = static_cast<Slot*>(call.slot);                                    \
    run(call, [&] { lms_pack({data, size}, parts, &tally, nullptr, call.pace, slot); }); \
    call.counts[2] = waited;                                                             \
    return tally.packed + tally.raw + tally.lines + tally.done == 0;                     \
  }                                                                                      \
  extern "C" bool lms_unpack_of_##kind(char* data, uint64_t size, Call call) {           \
    u32 corrupted = 0;                                                                   \
    const Parts parts = parts_of<Parts>(call);                                           \
    Slot* const slot = static_cast<Slot*>(call.slot);                                    \
    run(call, [&] { lms_unpack({data, size}, parts, 0, slot, &corrupted); });            \
    return corrupted == 0;                                                               \
  }
