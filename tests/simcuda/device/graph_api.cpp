// Runtime API: CUDA graphs. Captures are tracked (see capture.h), but a graph that results from one
// is empty, and launching it is an error.
#include "capture.h"
#include "state.h"

using namespace simcuda;

namespace {

// Any non-null pointer works, because nothing looks into a graph.
char graph_object;

cudaError_t capture_info(
    cudaStream_t handle,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    void** graph) {
  const Lock lock(state().mutex);
  const Stream* stream = state().stream(handle);
  if (stream == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  *status = capture_status(*stream);
  if (id != nullptr)
    *id = stream->capture;
  if (graph != nullptr)
    *graph = stream->capture != 0 ? &graph_object : nullptr;
  return cudaSuccess;
}

} // namespace

SIMCUDA_API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  SIMCUDA_ENTER("cudaStreamBeginCapture");
  const Lock lock(state().mutex);
  Stream* stream = state().stream(handle);
  if (stream == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  return fail(begin_capture(*stream, mode));
}

SIMCUDA_API cudaError_t cudaStreamEndCapture(cudaStream_t handle, void** graph) {
  SIMCUDA_ENTER("cudaStreamEndCapture");
  const Lock lock(state().mutex);
  Stream* stream = state().stream(handle);
  if (stream == nullptr)
    return fail(cudaErrorInvalidResourceHandle);
  const cudaError_t error = end_capture(*stream);
  *graph = error == cudaSuccess ? &graph_object : nullptr;
  return fail(error);
}

SIMCUDA_API cudaError_t
cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  SIMCUDA_ENTER("cudaStreamIsCapturing");
  return capture_info(handle, status, nullptr, nullptr);
}

// The parameters after `graph`, which describe the graph's nodes, differ between CUDA 12 and 13.
// They are left unchanged.
SIMCUDA_API cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    void** graph) {
  return capture_info(handle, status, id, SIMCUDA_CUDART_MAJOR >= 13 ? graph : nullptr);
}

SIMCUDA_API cudaError_t cudaStreamGetCaptureInfo_v2(
    cudaStream_t handle,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    void** graph) {
  return capture_info(handle, status, id, graph);
}

SIMCUDA_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  SIMCUDA_ENTER("cudaThreadExchangeStreamCaptureMode");
  const cudaStreamCaptureMode before = this_thread().capture_mode;
  this_thread().capture_mode = *mode;
  *mode = before;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaGraphGetNodes(void*, void**, size_t* count) {
  *count = 1; // not 0, because torch warns about an empty graph
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaGraphInstantiate(void** executable, void*, unsigned long long) {
  *executable = &graph_object;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

SIMCUDA_API cudaError_t cudaGraphLaunch(void*, cudaStream_t) {
  SIMCUDA_ENTER("cudaGraphLaunch");
  return fail(cudaErrorNotSupported);
}

SIMCUDA_API cudaError_t cudaGraphDestroy(void*) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaGraphExecDestroy(void*) {
  return cudaSuccess;
}
