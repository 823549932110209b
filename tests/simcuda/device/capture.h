// CUDA-graph capture, as far as a program can see it (see State::Capture).
#pragma once

#include <cstdint>

#include "cuda_types.h"
#include "state.h"

namespace simcuda {

// Whether this thread may make a call that a capture in progress forbids (cudaMalloc,
// cudaEventQuery and the like). When not, the captures concerned are invalid from then on. Hold the
// lock.
bool unsafe_call_allowed();

// Whether the host may wait for, or ask about, the stream. Hold the lock.
bool may_synchronize(const Stream& stream);

// What waiting for the marker means for the captures of the stream and of the marker: the stream
// joins the marker's capture, or the wait is an error. Hold the lock.
cudaError_t join_capture(Stream& stream, const Marker& marker);

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(Stream& stream);
cudaStreamCaptureStatus capture_status(const Stream& stream);

} // namespace simcuda
