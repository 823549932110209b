// Runtime API: streams and events.
//
// Functions that do the same under several names are counted under the shortest name, and faults
// are planned with it: cudaStreamCreate, cudaEventCreate, cudaEventRecord.
#include <algorithm>

#include "capture.h"
#include "state.h"

using namespace simcuda;

SIMCUDA_API cudaError_t
cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  SIMCUDA_ENTER("cudaStreamCreate");
  const Lock lock(state().mutex);
  *handle = state().create_stream(this_thread().device, flags, priority);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, 0, 0);
}

SIMCUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

SIMCUDA_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  SIMCUDA_ENTER("cudaStreamDestroy");
  const Lock lock(state().mutex);
  Stream* stream = state().stream(handle);
  if (stream == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  state().destroy_stream(stream);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const Lock lock(state().mutex);
  const Stream* stream = state().stream(handle);
  if (stream == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  const Lock lock(state().mutex);
  const Stream* stream = state().stream(handle);
  if (stream == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  *flags = stream->flags;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  const Lock lock(state().mutex);
  const Stream* stream = state().stream(handle);
  if (stream == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  *device = stream->device;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  SIMCUDA_ENTER("cudaStreamSynchronize");
  Stream* stream = nullptr;
  {
    const Lock lock(state().mutex);
    stream = state().stream(handle);
    if (stream == nullptr)
      return fail(cudaErrorInvalidResourceHandle);
    if (!may_synchronize(*stream))
      return fail(cudaErrorStreamCaptureUnsupported);
  }
  synchronize(*stream);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  SIMCUDA_ENTER("cudaStreamQuery");
  const Lock lock(state().mutex);
  Stream* stream = state().stream(handle);
  if (stream == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  if (!may_synchronize(*stream))
    return fail(cudaErrorStreamCaptureUnsupported);
  state().time.issue(Clockwork::kCall);
  if (!stream->queue->idle() || !state().time.reached(stream->ready))
    return cudaErrorNotReady;
  state().host_joins(stream->clock);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t event_handle, unsigned) {
  SIMCUDA_ENTER("cudaStreamWaitEvent");
  const Lock lock(state().mutex);
  Stream* stream = state().stream(stream_handle);
  const Event* event = state().event(event_handle);
  if (stream == nullptr || event == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Marker> marker = event->marker;
  if (marker == nullptr)
    return cudaSuccess; // never recorded: nothing to wait for
  if (const cudaError_t error = join_capture(*stream, *marker))
    return fail(error);
  state().begin_operation(*stream);
  stream->clock.join(marker->clock);
  stream->ready = std::max(stream->ready, marker->at);
  if (state().options.async)
    stream->queue->push([marker] { marker->wait(); });
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cudaLaunchHostFunc(cudaStream_t handle, void (*function)(void*), void* argument) {
  SIMCUDA_ENTER("cudaLaunchHostFunc");
  std::shared_ptr<WorkQueue> queue;
  {
    const Lock lock(state().mutex);
    Stream* stream = state().stream(handle);
    if (stream == nullptr)
      return fail(cudaErrorInvalidResourceHandle);
    state().begin_operation(*stream);
    queue = stream->queue;
  }
  queue->push([=] { function(argument); });
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaStreamAddCallback(
    cudaStream_t handle,
    void (*function)(cudaStream_t, cudaError_t, void*),
    void* argument,
    unsigned) {
  SIMCUDA_ENTER("cudaStreamAddCallback");
  std::shared_ptr<WorkQueue> queue;
  {
    const Lock lock(state().mutex);
    Stream* stream = state().stream(handle);
    if (stream == nullptr)
      return fail(cudaErrorInvalidResourceHandle);
    state().begin_operation(*stream);
    queue = stream->queue;
  }
  queue->push([=] { function(handle, cudaSuccess, argument); });
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  SIMCUDA_ENTER("cudaEventCreate");
  const Lock lock(state().mutex);
  *handle = state().create_event(this_thread().device, flags);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, 0);
}

SIMCUDA_API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  SIMCUDA_ENTER("cudaEventDestroy");
  const Lock lock(state().mutex);
  Event* event = state().event(handle);
  if (event == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  state().destroy_event(event);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cudaEventRecordWithFlags(cudaEvent_t event_handle, cudaStream_t stream_handle, unsigned) {
  SIMCUDA_ENTER("cudaEventRecord");
  const Lock lock(state().mutex);
  Stream* stream = state().stream(stream_handle);
  Event* event = state().event(event_handle);
  if (stream == nullptr || event == nullptr || event->device != stream->device) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  event->marker = state().record(*stream);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

SIMCUDA_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  SIMCUDA_ENTER("cudaEventQuery");
  const Lock lock(state().mutex);
  const Event* event = state().event(handle);
  if (event == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  if (!unsafe_call_allowed())
    return fail(cudaErrorStreamCaptureUnsupported);
  const std::shared_ptr<Marker> marker = event->marker;
  if (marker == nullptr)
    return cudaSuccess;
  if (marker->capture != 0)
    return fail(cudaErrorCapturedEvent);
  // An event that the host has waited for is not late.
  state().time.issue(Clockwork::kCall);
  const bool done = marker->query() || state().host_clock.covers(marker->clock);
  if (!done || !state().time.reached(marker->at))
    return cudaErrorNotReady;
  state().host_joins(marker->clock);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  SIMCUDA_ENTER("cudaEventSynchronize");
  std::shared_ptr<Marker> marker;
  {
    const Lock lock(state().mutex);
    const Event* event = state().event(handle);
    if (event == nullptr)
      return fail(cudaErrorInvalidResourceHandle);
    if (!unsafe_call_allowed())
      return fail(cudaErrorStreamCaptureUnsupported);
    marker = event->marker;
  }
  if (marker == nullptr)
    return cudaSuccess;
  if (marker->capture != 0)
    return fail(cudaErrorCapturedEvent);
  marker->wait();
  const Lock lock(state().mutex);
  state().time.wait(marker->at);
  state().host_joins(marker->clock);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  SIMCUDA_ENTER("cudaEventElapsedTime");
  const Lock lock(state().mutex);
  const Event* start = state().event(start_handle);
  const Event* end = state().event(end_handle);
  if (start == nullptr || end == nullptr || !start->marker || !end->marker) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (((start->flags | end->flags) & kEventDisableTiming) != 0) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (state().time.on()) {
    *milliseconds = static_cast<float>((end->marker->at - start->marker->at) * 1e3);
    return cudaSuccess;
  }
  const std::chrono::duration<float, std::milli> elapsed =
      end->marker->time() - start->marker->time();
  *milliseconds = elapsed.count();
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cudaEventElapsedTime_v2(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}
