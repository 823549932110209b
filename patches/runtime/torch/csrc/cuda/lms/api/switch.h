#pragma once

namespace torch::cuda::lms {

// Puts the tier in front of the native allocator, and starts the guard. Can be called before CUDA
// is initialized, and without a device. Throws c10::Error if another allocator than the native one
// is in use.
void turn_on();

// Stops the guard, and pages in all storages. Throws c10::OutOfMemoryError if they do not fit; LMS
// stays on then.
void turn_off();

} // namespace torch::cuda::lms
