#pragma once

// The planner's C ABI, for programs that have no GPU: `lmsbuild simulate` compiles this file, the
// planner and nothing else.

#include <torch/csrc/cuda/lms/base/export.h>

#include <stddef.h>
#include <stdint.h>

typedef struct {
  double limit; // bytes of device memory
  double out_rate; // bytes per second, to the host
  double in_rate; // bytes per second, from the host
  double overhead; // seconds that each transfer takes besides
  // So many times as fast are planned transfers, which are compressed. 1: they are not.
  double planned_speedup;
} lms_machine;

typedef struct {
  double seconds; // of one iteration
  double stall_seconds; // of it, in which no operator runs
  int64_t bytes_out;
  int64_t bytes_in;
  int64_t peak_bytes;
} lms_prediction;

typedef struct {
  int64_t operators;
  int64_t blocks;
  double compute_seconds; // of one iteration, with everything on the device
  int64_t peak_bytes; // the same
  int64_t fits; // 1: nothing has to leave
  lms_prediction planned;
  lms_prediction on_demand;
  double bound_seconds; // no plan is faster
} lms_simulation;

// Predicts the last iteration of a recording: `events` as in record/trace.h, `names` of operators.
// 0 = done; else *why says what is wrong. The text is valid until the calling thread's next call.
LMS_API int lms_simulate(
    const void* events,
    size_t event_count,
    const char* const* names,
    size_t name_count,
    int64_t unmanaged_bytes,
    const lms_machine* machine,
    lms_simulation* result,
    const char** why);
