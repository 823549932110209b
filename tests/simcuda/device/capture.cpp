#include "capture.h"

namespace simcuda {
namespace {

void invalidate(uint64_t id) {
  const auto it = state().captures.find(id);
  if (it != state().captures.end())
    it->second.invalidated = true;
}

} // namespace

bool unsafe_call_allowed() {
  const cudaStreamCaptureMode mode = this_thread().capture_mode;
  if (mode == cudaStreamCaptureModeRelaxed)
    return true;
  bool allowed = true;
  for (auto& [id, capture] : state().captures) {
    if (capture.mode == cudaStreamCaptureModeRelaxed)
      continue;
    const bool own = capture.thread == this_thread_id();
    const bool global =
        capture.mode == cudaStreamCaptureModeGlobal && mode == cudaStreamCaptureModeGlobal;
    if (!own && !global)
      continue;
    capture.invalidated = true;
    allowed = false;
  }
  return allowed;
}

bool may_synchronize(const Stream& stream) {
  if (stream.capture == 0)
    return unsafe_call_allowed();
  invalidate(stream.capture);
  return false;
}

cudaError_t join_capture(Stream& stream, const Marker& marker) {
  State& machine = state();
  const bool marker_capturing = machine.captures.count(marker.capture) != 0;
  if (stream.capture == 0) {
    if (marker.capture == 0)
      return cudaSuccess;
    if (!marker_capturing)
      return cudaErrorCapturedEvent;
    stream.capture = marker.capture;
    return cudaSuccess;
  }
  if (marker.capture == stream.capture)
    return cudaSuccess;
  invalidate(stream.capture);
  return cudaErrorStreamCaptureIsolation;
}

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode) {
  State& machine = state();
  if (stream.capture != 0)
    return cudaErrorIllegalState;
  if (machine.stream(nullptr) == &stream)
    return cudaErrorStreamCaptureUnsupported;
  stream.capture = machine.next_capture++;
  machine.captures[stream.capture] = Capture{&stream, mode, this_thread_id()};
  return cudaSuccess;
}

cudaError_t end_capture(Stream& stream) {
  State& machine = state();
  const auto it = machine.captures.find(stream.capture);
  if (it == machine.captures.end())
    return cudaErrorIllegalState;
  if (it->second.origin != &stream)
    return cudaErrorStreamCaptureUnmatched;
  const bool invalidated = it->second.invalidated;
  const uint64_t id = it->first;
  machine.captures.erase(it);
  for (Stream* other : machine.streams_of(stream.device)) {
    if (other->capture == id)
      other->capture = 0;
  }
  return invalidated ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaStreamCaptureStatus capture_status(const Stream& stream) {
  const auto it = state().captures.find(stream.capture);
  if (it == state().captures.end())
    return cudaStreamCaptureStatusNone;
  return it->second.invalidated ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
}

} // namespace simcuda
