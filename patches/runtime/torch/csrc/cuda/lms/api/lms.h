#pragma once

// The C ABI of libtorch_lms.so. It uses only plain C types, so that one library works with every
// Python version. Storages are passed by address (storage._cdata in Python), and the caller keeps
// them alive during the call.
//
// Functions that return int return 0 on success, 1 on failure and 2 if they ran out of memory. Then
// lms_last_error() returns the reason, for the calling thread.

#include <torch/csrc/cuda/lms/base/export.h>

#include <stddef.h>
#include <stdint.h>

LMS_API int lms_abi_version(void);
LMS_API const char* lms_last_error(void);

LMS_API int lms_set_enabled(int enabled);
LMS_API int lms_get_enabled(void);

// In bytes. A limit of 0 means automatic.
LMS_API int lms_set_limit(size_t bytes);
LMS_API size_t lms_get_limit(void);
LMS_API int lms_set_size(size_t bytes);
LMS_API size_t lms_get_size(void);

// Pages out all idle storages of all devices. *bytes is set to the number of bytes.
LMS_API int lms_reclaim_inactive(size_t* bytes);

// Maximum number of bytes of host memory that may be pinned; 0 means all that the machine has.
LMS_API int lms_set_host_limit(size_t bytes);
LMS_API size_t lms_get_host_limit(void);

// Pins host memory for a device until at least *bytes are pinned. *bytes is set to the number of
// bytes that are pinned.
LMS_API int lms_reserve_host(int device, size_t* bytes);

// Unpins host memory that contains no storage. *bytes is set to the number of bytes.
LMS_API int lms_trim_host(size_t* bytes);

// Statistics of one device: lms_stat_count() numbers, and the name of each.
LMS_API size_t lms_stat_count(void);
LMS_API const char* lms_stat_name(size_t index);
LMS_API int lms_stats(int device, int64_t* values);
LMS_API int lms_reset_peak_stats(int device);
LMS_API int lms_reset_accumulated_stats(int device);

// Keeps a storage on its device until the matching lms_release().
LMS_API int lms_hold(void* storage);
LMS_API int lms_release(void* storage);

// Call this before the storage's address is read: see Guard::address_taken(). If `lasting` is not
// 0, others have it for longer than an operator.
LMS_API int lms_take_address(void* storage, int lasting);
// Tells LMS what a slice of a storage is like.
LMS_API int lms_know_slice(void* slice, void* storage);
LMS_API int lms_release_address(void* storage);

// Everything that this thread does between these two calls counts as one operator on these
// storages. `begun` is set to 1 if it has to be ended.
LMS_API int lms_begin_region(void* const* storages, size_t count, int* begun);
LMS_API int lms_end_region(void);

// Brings a storage to its device as an operator does that reads it, and lets it go.
LMS_API int lms_bring(void* storage);

// For code like that while LMS is off: it needs no storages, because nothing is paged out before
// lms_uncount_region(), even if another thread turns LMS on. Sets *begun to 0 if LMS is on already:
// then lms_uncount_region() must not be called, and the other functions are needed.
LMS_API void lms_count_region(int* begun);
LMS_API void lms_uncount_region(void);

// Everything that this thread does between these two calls is compiled code that launches its
// kernels through lms_python_launch(). If *outputs is set to 1, the storages that the code returns
// have to be passed to lms_end_compiled(); otherwise count may be 0. *begun as for a region.
LMS_API int lms_begin_compiled(int* outputs, int* begun);
LMS_API int lms_end_compiled(void* const* storages, size_t count);

// Everything that this thread does between these two calls counts as a hook of an autograd node:
// what it uses stays on the device until it is freed or lms_release_address() is called. *begun as
// for a region.
LMS_API int lms_begin_hook(int* begun);
LMS_API int lms_end_hook(void);

// Returns 1 if the storage is on the device, 0 if it is in host memory, and -1 if it is not
// managed.
LMS_API int lms_is_resident(void* storage);

// Whether LMS finds unseen writes on a device. *why is empty if it does, and otherwise the reason
// why not. The text is valid until this thread's next call.
LMS_API int lms_checks(int device, const char** why);

// Whether LMS learns which iterations repeat, and plans them.
LMS_API int lms_set_planning(int enabled);
LMS_API int lms_get_planning(void);

// Whether reading the data of a storage that is paged out gives a null pointer instead of an error:
// the profiler's look at modules and optimizers ends the process otherwise.
LMS_API int lms_set_readable(int readable);

// Which blocks are compressed on their way to the host: 0 those that shrink while transfers hold up
// the program, 1 all, 2 none.
LMS_API int lms_set_compression(int setting);
LMS_API int lms_get_compression(void);

// *why is set to the reason why some data is not compressed although it should be, or to "". The
// text is valid until this thread's next call.
LMS_API int lms_why_not_compressed(int device, const char** why);

// Starts or stops a recording of what operators use on a device.
LMS_API int lms_record(int device, int on);

// Marks the end of an iteration on all devices: the optimizer with this number has made a step, or,
// if it is 0, the program says so itself.
LMS_API int lms_step(uint32_t optimizer);

// The last recording: its events (see record/trace.h), and the number of names. The pointers are
// valid until the device's next recording.
LMS_API int lms_trace(int device, const void** events, size_t* event_count, size_t* name_count);
LMS_API const char* lms_trace_name(int device, size_t index);

// For tests: "stress", "late", "verify_clean", "verify" and "keep_plans" (see Settings), "watch"
// (see Watch), and "plans", which waits for the plans that are being made.
LMS_API int lms_set_option(const char* name, int value);
