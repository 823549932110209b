#include "control.h"

#include <string>

#include "state.h"

using namespace simcuda;

namespace {

// Texts that are returned to Python stay valid until the same thread asks for the next one.
const char* keep(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

const char* lines(const std::map<std::string, long>& counts) {
  std::string text;
  for (const auto& [name, count] : counts)
    text += name + " " + std::to_string(count) + "\n";
  return keep(std::move(text));
}

} // namespace

SIMCUDA_API void simcuda_restart() {
  restart();
}

SIMCUDA_API void* simcuda_host_view(const void* pointer) {
  return state().memory.host_view(pointer);
}

SIMCUDA_API int simcuda_operator_begin(void* handle, int device) {
  Stream* stream = nullptr;
  {
    const Lock lock(state().mutex);
    stream = state().stream(handle);
    if (stream == nullptr || stream->device != device)
      return cudaErrorInvalidResourceHandle;
    state().begin_operation(*stream);
  }
  drain(*stream);
  return cudaSuccess;
}

SIMCUDA_API int
simcuda_operator_takes(void* handle, int device, double seconds, double host_seconds) {
  const Lock lock(state().mutex);
  this_thread().issues = true;
  Stream* stream = state().stream(handle);
  if (stream == nullptr || stream->device != device)
    return cudaErrorInvalidResourceHandle;
  state().time.issue(host_seconds);
  state().begin_operation(*stream);
  stream->ready += seconds;
  return cudaSuccess;
}

SIMCUDA_API double simcuda_host_time() {
  const Lock lock(state().mutex);
  return state().time.host();
}

SIMCUDA_API int simcuda_is_live(const void* pointer, size_t size) {
  const Lock lock(state().mutex);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return state().memory.device_of(address) >= 0 && state().memory.accessible(address, size);
}

SIMCUDA_API void simcuda_operator_access(
    void* handle,
    const void* pointer,
    size_t size,
    int write,
    const char* name) {
  const Lock lock(state().mutex);
  const Stream* stream = state().stream(handle);
  if (stream == nullptr || stream->capture != 0)
    return; // captured work is not done yet
  state().race.access(
      stream->actor,
      stream->clock,
      reinterpret_cast<uintptr_t>(pointer),
      size,
      write != 0 ? AccessKind::kWrite : AccessKind::kRead,
      name);
}

SIMCUDA_API void simcuda_block_allocated(void* pointer, size_t size) {
  const Lock lock(state().mutex);
  state().memory.take_block(reinterpret_cast<uintptr_t>(pointer), size);
}

SIMCUDA_API void simcuda_block_freed(void* pointer, size_t size) {
  const Lock lock(state().mutex);
  state().memory.return_block(reinterpret_cast<uintptr_t>(pointer), size);
}

// Races.
SIMCUDA_API long simcuda_race_count() {
  const Lock lock(state().mutex);
  return static_cast<long>(state().race.reports().size());
}

SIMCUDA_API const char* simcuda_race_report(long index) {
  const Lock lock(state().mutex);
  return keep(state().race.reports().at(static_cast<size_t>(index)));
}

SIMCUDA_API void simcuda_clear_races() {
  const Lock lock(state().mutex);
  state().race.clear_reports();
}

SIMCUDA_API void simcuda_enable_race(int on) {
  const Lock lock(state().mutex);
  state().race.enable(on != 0);
}

SIMCUDA_API void
simcuda_host_access(const void* pointer, size_t size, int write, const char* what) {
  const Lock lock(state().mutex);
  State& machine = state();
  machine.host_clock.tick(kHost);
  machine.race.access(
      kHost,
      machine.host_clock,
      reinterpret_cast<uintptr_t>(pointer),
      size,
      write != 0 ? AccessKind::kWrite : AccessKind::kRead,
      machine.intern(what));
}

// Faults and counts.
SIMCUDA_API void simcuda_plan_fault(const char* api, long nth, int error, int from_then_on) {
  const Lock lock(state().mutex);
  state().calls.plan_fault(api, nth, static_cast<cudaError_t>(error), from_then_on != 0);
}

SIMCUDA_API void simcuda_clear_faults() {
  const Lock lock(state().mutex);
  state().calls.clear_faults();
}

SIMCUDA_API void simcuda_hold(const char* api, int device, double seconds) {
  state().gate.hold(api, device, seconds);
}

SIMCUDA_API void simcuda_release(const char* api) {
  state().gate.release(api);
}

SIMCUDA_API void simcuda_release_all() {
  state().gate.release_all();
}

SIMCUDA_API long simcuda_waiting(const char* api) {
  return state().gate.waiting(api);
}

SIMCUDA_API long simcuda_count(const char* api) {
  const Lock lock(state().mutex);
  return state().calls.count(api);
}

SIMCUDA_API const char* simcuda_counts() {
  const Lock lock(state().mutex);
  return lines(state().calls.counts());
}

SIMCUDA_API const char* simcuda_launches() {
  const Lock lock(state().mutex);
  return lines(state().launches);
}

SIMCUDA_API const char* simcuda_thread_blocks() {
  const Lock lock(state().mutex);
  return lines(state().thread_blocks);
}

SIMCUDA_API uint64_t simcuda_napped() {
  return state().napped;
}

SIMCUDA_API void simcuda_reset_counts() {
  const Lock lock(state().mutex);
  state().napped = 0;
  state().calls.reset_counts();
  state().launches.clear();
  state().thread_blocks.clear();
}

// Memory, and live streams and events.
SIMCUDA_API size_t simcuda_used(int device) {
  const Lock lock(state().mutex);
  return device < 0 || device >= kMaxDevices ? 0 : state().memory.used(device);
}

SIMCUDA_API void simcuda_set_capacity(size_t bytes) {
  const Lock lock(state().mutex);
  state().memory.set_capacity(bytes);
}

SIMCUDA_API void simcuda_reuse_addresses(int reuse) {
  const Lock lock(state().mutex);
  state().memory.reuse_addresses(reuse != 0);
}

SIMCUDA_API void simcuda_set_host_limit(size_t bytes) {
  const Lock lock(state().mutex);
  state().host.set_limit(bytes);
}

SIMCUDA_API size_t simcuda_host_bytes() {
  const Lock lock(state().mutex);
  return state().host.bytes();
}

SIMCUDA_API size_t simcuda_host_ranges() {
  const Lock lock(state().mutex);
  return state().host.count();
}

SIMCUDA_API size_t simcuda_live_streams() {
  const Lock lock(state().mutex);
  return state().live_streams();
}

SIMCUDA_API size_t simcuda_live_events() {
  const Lock lock(state().mutex);
  return state().live_events();
}

// Called by the runtime functions that are not simulated (generated, see simcuda/stubs.py).
extern "C" int simcuda_unsupported(const char* name) {
  SIMCUDA_ENTER(name);
  log("%s is not supported", name);
  return fail(cudaErrorNotSupported);
}
