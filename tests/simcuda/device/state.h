// The simulated machine: one object, guarded by one lock.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_types.h"
#include "fault.h"
#include "memory.h"
#include "options.h"
#include "race.h"
#include "stream.h"

namespace simcuda {

// A CUDA-graph capture in progress. Work of a capture is done at once, not recorded: what can be
// tested is the state that the program sees and the calls that a capture forbids.
struct Capture {
  Stream* origin;
  cudaStreamCaptureMode mode;
  uintptr_t thread; // where it began
  bool invalidated = false;
};

class State {
 public:
  State();

  // Hold it while using anything below; never while waiting for a queue.
  std::recursive_mutex mutex;

  Gate gate;
  const Options options;
  CallLog calls;
  RaceChecker race;
  DeviceMemory memory;
  HostMemory host;
  VectorClock host_clock;

  std::map<std::string, long> launches; // kernel name -> launches
  std::unordered_map<const void*, const char*> kernel_names; // host stub -> kernel name
  std::map<uint64_t, Capture> captures;
  uint64_t next_capture = 1;

  // Handles. A handle that is unknown, or was destroyed, gives nullptr.
  Stream* stream(cudaStream_t handle);
  Event* event(cudaEvent_t handle);
  Stream* create_stream(int device, unsigned flags, int priority);
  void destroy_stream(Stream* stream);
  Event* create_event(int device, unsigned flags);
  void destroy_event(Event* event);
  size_t live_streams() const {
    return streams_.size() - special_streams_;
  }
  size_t live_events() const {
    return events_.size();
  }
  std::vector<Stream*> streams_of(int device);

  // Orders a new operation of the stream after what the host has seen and after what the legacy
  // stream's rules ask for, and starts its step.
  void begin_operation(Stream& stream);
  // Orders the host's next step after the clock.
  void host_joins(const VectorClock& clock);
  // The clock of all the work that the device was given so far.
  VectorClock device_clock(int device);
  std::shared_ptr<Marker> record(Stream& stream);

  // Keeps a copy of the text for as long as the process lives.
  const char* intern(const std::string& text) {
    return interned_.insert(text).first->c_str();
  }

 private:
  Stream* special_stream(
      std::map<std::pair<int, uintptr_t>, Stream*>& table,
      int device,
      uintptr_t thread,
      const char* name);
  Stream* add_stream(int device, unsigned flags, int priority, std::string name);
  void wait_for(Stream& stream, Stream& other);

  std::unordered_map<void*, std::unique_ptr<Stream>> streams_;
  std::unordered_map<void*, std::unique_ptr<Event>> events_;
  std::map<std::pair<int, uintptr_t>, Stream*> legacy_streams_;
  std::map<std::pair<int, uintptr_t>, Stream*> thread_streams_;
  size_t special_streams_ = 0; // made by the runtime itself, not by the program
  VectorClock retired_[kMaxDevices]; // work of destroyed streams
  std::set<std::string> interned_;
};

State& state();

using Lock = std::lock_guard<std::recursive_mutex>;

// Per host thread, as in CUDA.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};
ThreadState& this_thread();
uintptr_t this_thread_id();

// Remembers the error for cudaGetLastError() and returns it.
cudaError_t fail(cudaError_t error);
// Says on stderr what went wrong, when the test asked for it.
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Waits until the work given to the stream, or to the device, so far is done. The host is ordered
// after it only by synchronize(): draining alone is the simulation's own business.
void drain(Stream& stream);
void drain_device(int device);
void synchronize(Stream& stream);
void synchronize_device(int device);

} // namespace simcuda

// Waits while a test holds the call, counts it and returns the error that a test planned for it.
#define SIMCUDA_ENTER(api)                                               \
  do {                                                                   \
    ::simcuda::state().gate.pass(api, ::simcuda::this_thread().device);  \
    ::simcuda::Lock enter_lock(::simcuda::state().mutex);                \
    if (const cudaError_t planned = ::simcuda::state().calls.enter(api)) \
      return ::simcuda::fail(planned);                                   \
  } while (0)

// The same for the driver and NVRTC, whose errors cudaGetLastError() does not know.
#define SIMCUDA_ENTER_DRIVER(api)                                        \
  do {                                                                   \
    ::simcuda::state().gate.pass(api, ::simcuda::this_thread().device);  \
    ::simcuda::Lock enter_lock(::simcuda::state().mutex);                \
    if (const cudaError_t planned = ::simcuda::state().calls.enter(api)) \
      return planned;                                                    \
  } while (0)
