// CUDA-graph capture, as far as a program can see it (see State::Capture).
#pragma once

#include <cstdint>

#include "cuda_types.h"
#include "state.h"

namespace simcuda {

// Whether this thread may make a call that a capture in progress forbids (cudaMalloc,
// cudaEventQuery and the like). If not, the affected captures become invalid. Hold the lock.
bool unsafe_call_allowed();

// Whether the host may wait for or query the stream. Hold the lock.
bool may_synchronize(const Stream& stream);

// Handles a wait of the stream for the marker with respect to captures: either the stream joins the
// marker's capture, or the wait is an error. Hold the lock.
cudaError_t join_capture(Stream& stream, const Marker& marker);

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode);
cudaError_t end_capture(Stream& stream);
cudaStreamCaptureStatus capture_status(const Stream& stream);

} // namespace simcuda
