#pragma once

// The C ABI of libtorch_lms.so: plain C types, so that one library serves every
// Python. Storages are given by address (Python: storage._cdata); the caller
// keeps them alive during the call.
//
// Functions that return int: 0 = done, 1 = failed, 2 = out of memory;
// lms_last_error() says why, for the calling thread.

#include <torch/csrc/cuda/lms/base/export.h>

#include <stddef.h>
#include <stdint.h>

LMS_API int lms_abi_version(void);
LMS_API const char* lms_last_error(void);

LMS_API int lms_set_enabled(int enabled);
LMS_API int lms_get_enabled(void);

// Bytes. Limit 0 = automatic.
LMS_API int lms_set_limit(size_t bytes);
LMS_API size_t lms_get_limit(void);
LMS_API int lms_set_size(size_t bytes);
LMS_API size_t lms_get_size(void);

// Pages out every idle storage of every device; *bytes gets how much.
LMS_API int lms_reclaim_inactive(size_t* bytes);

// Bytes of host memory that may be pinned; 0 = what the machine has.
LMS_API int lms_set_host_limit(size_t bytes);
LMS_API size_t lms_get_host_limit(void);

// Pins host memory next to a device until there are *bytes; *bytes gets how
// many there are.
LMS_API int lms_reserve_host(int device, size_t* bytes);

// Unpins host memory that holds no storage; *bytes gets how much.
LMS_API int lms_trim_host(size_t* bytes);

// Statistics of one device: lms_stat_count() numbers, named by index.
LMS_API size_t lms_stat_count(void);
LMS_API const char* lms_stat_name(size_t index);
LMS_API int lms_stats(int device, int64_t* values);
LMS_API int lms_reset_peak_stats(int device);
LMS_API int lms_reset_accumulated_stats(int device);

// Keeps a storage on its device until the matching lms_release().
LMS_API int lms_hold(void* storage);
LMS_API int lms_release(void* storage);

// The storage's address is about to be read: see Guard::address_taken().
LMS_API int lms_take_address(void* storage);
LMS_API int lms_release_address(void* storage);

// What this thread does between the two is one operator on these storages.
LMS_API int lms_begin_region(void* const* storages, size_t count);
LMS_API int lms_end_region(void);

// What this thread does between the two is a hook of an autograd node: what it uses stays on the
// device until it dies or lms_release_address() is called.
LMS_API int lms_begin_hook(void);
LMS_API int lms_end_hook(void);

// 1: on the device, 0: in host memory, -1: not managed.
LMS_API int lms_is_resident(void* storage);

// Whether writes that no operator shows are found on a device: *why is empty if they are, and else
// says why not. The text is valid until this thread's next call.
LMS_API int lms_checks(int device, const char** why);

// Begins to record what operators use on a device, or ends it.
LMS_API int lms_record(int device, int on);

// Marks the end of an iteration in what is recorded, on every device.
LMS_API int lms_step(void);

// What was recorded last: events as in record/trace.h, and how many names there are. Valid until
// the device's next recording.
LMS_API int lms_trace(int device, const void** events, size_t* event_count, size_t* name_count);
LMS_API const char* lms_trace_name(int device, size_t index);

// For tests: "stress", "verify_clean" and "verify", see Settings, and "watch", see Watch.
LMS_API int lms_set_option(const char* name, int value);
