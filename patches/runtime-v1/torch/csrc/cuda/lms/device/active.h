#pragma once

// Statistics of the first LMS for PyTorch 1.1 to 1.3, which it no longer had for 1.4: the memory
// that cannot be paged out, and its peak.

#include <torch/csrc/cuda/lms/base/export.h>
#include <torch/csrc/cuda/lms/device/pager.h>

namespace torch::cuda::lms {

#if __has_include(<c10/util/TypeIndex.h>) // PyTorch 1.4
inline void count_active(c10::DeviceIndex /*device*/) {}
#else
// Call this without the mutex when the memory in use may have grown.
void count_active(c10::DeviceIndex device);

// Sets values[0] to the bytes in use now, and values[1] to their maximum.
LMS_API int lms_active(int device, int64_t* values);
LMS_API int lms_reset_active(int device);

// Set only these statistics to 0.
LMS_API int lms_reset_reclaimed(int device);
LMS_API int lms_reset_alloc_distribution(int device);
#endif

} // namespace torch::cuda::lms
