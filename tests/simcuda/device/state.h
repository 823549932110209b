// The simulated machine: one object, protected by one lock.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "clockwork.h"
#include "cuda_types.h"
#include "fault.h"
#include "memory.h"
#include "options.h"
#include "race.h"
#include "stream.h"

namespace simcuda {

// A CUDA graph capture in progress. Captured work is executed at once, not recorded. Tests can
// check the state that the program sees and the calls that a capture forbids.
struct Capture {
  Stream* origin;
  cudaStreamCaptureMode mode;
  uintptr_t thread; // that began the capture
  bool invalidated = false;
};

class State {
 public:
  State();

  // Hold it while using any of the members below, but never while waiting for a queue.
  std::recursive_mutex mutex;

  Gate gate;
  const Options options;
  Clockwork time;
  CallLog calls;
  RaceChecker race;
  DeviceMemory memory;
  HostMemory host;
  VectorClock host_clock;

  std::map<std::string, long> launches; // kernel name -> launches
  std::map<std::string, long> thread_blocks; // kernel of a module -> the most of one launch
  std::atomic<uint64_t> napped{0}; // nanoseconds, by kernels of modules, without the mutex
  std::unordered_map<const void*, const char*> kernel_names; // host stub -> kernel name
  std::map<uint64_t, Capture> captures;
  uint64_t next_capture = 1;

  // Streams and events by handle. A handle that is unknown or was destroyed returns nullptr.
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

  // Orders a new operation of the stream after everything that the host has seen, and after what
  // the rules of the legacy stream require. Starts its step.
  void begin_operation(Stream& stream);
  // Orders the host's next step after this clock.
  void host_joins(const VectorClock& clock);
  // When the work given to the device so far would be done.
  double device_ready(int device);
  // The clock of all work given to the device so far.
  VectorClock device_clock(int device);
  std::shared_ptr<Marker> record(Stream& stream);

  // Keeps a copy of the text until the process ends.
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
  size_t special_streams_ = 0; // created by the runtime itself, not by the program
  VectorClock retired_[kMaxDevices]; // work of destroyed streams
  std::set<std::string> interned_;
};

State& state();
// Begins anew, with the options of the environment as they are now. For a process that was forked
// from one with torch loaded, before it has used the device.
void restart();

using Lock = std::lock_guard<std::recursive_mutex>;

// The state of a host thread, as in CUDA.
struct ThreadState {
  int device = 0;
  bool issues = false; // operators, so that its time is the host's
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};
ThreadState& this_thread();
uintptr_t this_thread_id();

// Remembers the error for cudaGetLastError() and returns it.
cudaError_t fail(cudaError_t error);
// Prints the error on stderr if the test asked for it.
void log(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Wait until the work given to the stream or to the device so far is done. Only synchronize() and
// synchronize_device() order the host after it; draining is internal to the simulation.
void drain(Stream& stream);
void drain_device(int device);
void synchronize(Stream& stream);
void synchronize_device(int device);

} // namespace simcuda

// Waits if a test holds the call, counts it, and returns the error that a test planned for it.
#define SIMCUDA_ENTER(api)                                               \
  do {                                                                   \
    ::simcuda::state().gate.pass(api, ::simcuda::this_thread().device);  \
    ::simcuda::Lock enter_lock(::simcuda::state().mutex);                \
    if (const cudaError_t planned = ::simcuda::state().calls.enter(api)) \
      return ::simcuda::fail(planned);                                   \
  } while (0)

// The same for the driver and NVRTC, whose errors are not reported by cudaGetLastError().
#define SIMCUDA_ENTER_DRIVER(api)                                        \
  do {                                                                   \
    ::simcuda::state().gate.pass(api, ::simcuda::this_thread().device);  \
    ::simcuda::Lock enter_lock(::simcuda::state().mutex);                \
    if (const cudaError_t planned = ::simcuda::state().calls.enter(api)) \
      return planned;                                                    \
  } while (0)
