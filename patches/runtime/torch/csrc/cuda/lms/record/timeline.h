#pragma once

// The rest of the planner's C ABI: what happens in a simulated iteration, for graphs.

#include <torch/csrc/cuda/lms/record/simulation.h>

typedef struct {
  const char* name;
  double seconds; // on the device, with everything that it uses in place
  int64_t living_bytes; // with everything on the device
  int64_t needed_bytes; // that it cannot do without
} lms_timeline_operator;

typedef struct {
  int64_t bytes;
  int64_t allocated; // the operator before which it is; -1 if it lives across iterations
  int64_t freed; // the operator after which it is; -1 if it lives across iterations
} lms_timeline_block;

typedef struct {
  int64_t place; // the operator's
  int64_t block;
  int64_t writes;
} lms_timeline_access;

// When an operator starts, in seconds from the iteration's beginning.
typedef struct {
  double seconds;
  double stall_seconds; // before it
  int64_t cause; // of the stall: 0 none, 1 a block has to arrive, 2 memory has to become free
  int64_t used_bytes; // on the device, in use or promised
} lms_timeline_start;

typedef struct {
  int64_t kind; // 0 a copy to the host, 1 a copy to the device, 2 the device's memory is given up
  int64_t block;
  int64_t place; // of the operator at which it was issued
  double begin_seconds; // from the iteration's beginning; may be after its end
  double end_seconds; // the same
} lms_timeline_movement;

typedef struct {
  const lms_timeline_start* starts; // one for each operator
  // In the order of their issue, after one for each block that is never on the device.
  const lms_timeline_movement* movements;
  size_t movement_count;
} lms_timeline_course;

typedef struct {
  lms_simulation totals; // with the numbers of operators and blocks
  const lms_timeline_operator* operators;
  const lms_timeline_block* blocks;
  const lms_timeline_access* accesses; // in the order of operators
  size_t access_count;
  lms_timeline_course planned;
  lms_timeline_course on_demand;
} lms_timeline;

// As lms_simulate(). What the result points to is valid until the calling thread's next call.
LMS_API int lms_simulate_timeline(
    const void* events,
    size_t event_count,
    const char* const* names,
    size_t name_count,
    int64_t unmanaged_bytes,
    const lms_machine* machine,
    lms_timeline* result,
    const char** why);
