#pragma once

namespace torch::cuda::lms {

// Puts the tier in front of the native allocator and starts the guard. Works before CUDA is
// initialized and without a device. Throws c10::Error when the allocator in use is not the native
// one.
void turn_on();

// Stops the guard and brings every storage back to its device. Throws c10::OutOfMemoryError, with
// LMS still on, when they do not fit.
void turn_off();

} // namespace torch::cuda::lms
