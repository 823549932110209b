#include "transfer.h"

#include <cstring>
#include <memory>
#include <vector>

#include "capture.h"
#include "state.h"

namespace simcuda {
namespace {

enum class Place { kDevice, kPinned, kPageable };

Place place_of(const void* pointer) {
  State& machine = state();
  if (machine.memory.device_of(reinterpret_cast<uintptr_t>(pointer)) >= 0)
    return Place::kDevice;
  return machine.host.pinned(pointer) ? Place::kPinned : Place::kPageable;
}

const char* name_of(Place from, Place to) {
  if (from == Place::kDevice) {
    return to == Place::kDevice ? "a copy from device to device" : "a copy from device to host";
  }
  return to == Place::kDevice ? "a copy from host to device" : "a copy from host to host";
}

size_t span(size_t pitch, size_t width, size_t rows) {
  return (rows - 1) * pitch + width;
}

bool usable(const char* api, const void* pointer, size_t size) {
  State& machine = state();
  if (!machine.memory.accessible(reinterpret_cast<uintptr_t>(pointer), size)) {
    log("%s: %zu bytes at %p are not, or not all, live device memory", api, size, pointer);
    return false;
  }
  if (machine.host.freed(pointer)) {
    log("%s: %p is pinned memory that was freed", api, pointer);
    return false;
  }
  return true;
}

// Pageable memory is not tracked, because the call has finished with it when it returns. Captured
// work is not tracked either, because a GPU would do it when the graph is launched.
void track(
    Stream& stream,
    const void* pointer,
    Place place,
    size_t pitch,
    size_t width,
    size_t rows,
    AccessKind kind,
    const char* what) {
  if (place == Place::kPageable || stream.capture != 0)
    return;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (size_t row = 0; row < rows; ++row) {
    state().race.access(stream.actor, stream.clock, address + row * pitch, width, kind, what);
  }
}

void copy_rows(
    char* to,
    size_t to_pitch,
    const char* from,
    size_t from_pitch,
    size_t width,
    size_t rows) {
  for (size_t row = 0; row < rows; ++row) {
    std::memmove(to + row * to_pitch, from + row * from_pitch, width);
  }
}

} // namespace

cudaError_t copy(const char* api, const Copy& copy, cudaStream_t handle, bool synchronous) {
  SIMCUDA_ENTER(api);
  if (copy.width == 0 || copy.rows == 0)
    return cudaSuccess;
  State& machine = state();
  Stream* stream = nullptr;
  Place from = Place::kDevice;
  Place to = Place::kDevice;
  {
    const Lock lock(machine.mutex);
    stream = machine.stream(handle);
    if (stream == nullptr)
      return fail(cudaErrorInvalidResourceHandle);
    if (synchronous && !unsafe_call_allowed())
      return fail(cudaErrorStreamCaptureUnsupported);
    if (!usable(api, copy.to, span(copy.to_pitch, copy.width, copy.rows)) ||
        !usable(api, copy.from, span(copy.from_pitch, copy.width, copy.rows))) {
      return fail(cudaErrorIllegalAddress);
    }
    from = place_of(copy.from);
    to = place_of(copy.to);
    machine.begin_operation(*stream);
    if (machine.time.on()) {
      const Clockwork::Way way = to != Place::kDevice     ? Clockwork::Way::ToHost
                                 : from != Place::kDevice ? Clockwork::Way::ToDevice
                                                          : Clockwork::Way::Within;
      stream->ready = machine.time.copy(stream->device, way, copy.width * copy.rows, stream->ready);
    }
    const char* what = name_of(from, to);
    track(
        *stream, copy.from, from, copy.from_pitch, copy.width, copy.rows, AccessKind::kRead, what);
    track(*stream, copy.to, to, copy.to_pitch, copy.width, copy.rows, AccessKind::kWrite, what);
  }
  char* target = machine.memory.host_view(copy.to);
  const char* source = machine.memory.host_view(copy.from);
  if (!machine.options.bytes) {
    if (synchronous || to == Place::kPageable)
      synchronize(*stream);
    return cudaSuccess;
  }
  if (from == Place::kPageable && !synchronous && machine.options.async) {
    // CUDA copies pageable memory before the call returns, so the caller may change it at once.
    auto staged = std::make_shared<std::vector<char>>(copy.width * copy.rows);
    copy_rows(staged->data(), copy.width, source, copy.from_pitch, copy.width, copy.rows);
    stream->queue->push([=] {
      copy_rows(target, copy.to_pitch, staged->data(), copy.width, copy.width, copy.rows);
    });
  } else {
    stream->queue->push(
        [=] { copy_rows(target, copy.to_pitch, source, copy.from_pitch, copy.width, copy.rows); });
  }
  if (synchronous || to == Place::kPageable)
    synchronize(*stream);
  return cudaSuccess;
}

cudaError_t copy(
    const char* api,
    void* to,
    const void* from,
    size_t size,
    cudaStream_t stream,
    bool synchronous) {
  return copy(api, Copy{to, size, from, size, size, 1}, stream, synchronous);
}

cudaError_t fill(
    const char* api,
    void* to,
    unsigned value,
    size_t unit,
    size_t count,
    cudaStream_t handle,
    bool synchronous) {
  SIMCUDA_ENTER(api);
  if (count == 0)
    return cudaSuccess;
  State& machine = state();
  Stream* stream = nullptr;
  {
    const Lock lock(machine.mutex);
    stream = machine.stream(handle);
    if (stream == nullptr)
      return fail(cudaErrorInvalidResourceHandle);
    if (!usable(api, to, unit * count))
      return fail(cudaErrorIllegalAddress);
    machine.begin_operation(*stream);
    track(*stream, to, place_of(to), unit * count, unit * count, 1, AccessKind::kWrite, "a fill");
  }
  char* target = machine.memory.host_view(to);
  if (!machine.options.bytes)
    return cudaSuccess;
  stream->queue->push([=] {
    for (size_t i = 0; i < count; ++i)
      std::memcpy(target + i * unit, &value, unit);
  });
  if (synchronous)
    synchronize(*stream);
  return cudaSuccess;
}

} // namespace simcuda
