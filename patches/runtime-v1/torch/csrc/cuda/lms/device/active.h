#pragma once

// What the first LMS counted for PyTorch 1.1 to 1.3 and no longer for 1.4: memory
// that cannot be paged out, and how much of it there was at most.

#include <torch/csrc/cuda/lms/base/export.h>
#include <torch/csrc/cuda/lms/device/pager.h>

namespace torch::cuda::lms {

#if __has_include(<c10/util/TypeIndex.h>) // PyTorch 1.4
inline void count_active(c10::DeviceIndex /*device*/) {}
#else
// To be called where memory in use may have grown, without the mutex.
void count_active(c10::DeviceIndex device);

// values[0] gets the bytes in use now, values[1] their maximum.
LMS_API int lms_active(int device, int64_t* values);
LMS_API int lms_reset_active(int device);

// Sets these of the statistics to 0, and no others.
LMS_API int lms_reset_reclaimed(int device);
LMS_API int lms_reset_alloc_distribution(int device);
#endif

} // namespace torch::cuda::lms
