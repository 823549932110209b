#include "state.h"

#include <pthread.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <new>
#include <utility>

namespace simcuda {

namespace {

// Never destroyed: the threads of the queues and torch's own static objects may outlive main().
State* current = nullptr;

} // namespace

State& state() {
  static const bool made = [] {
    // A child process asks for counts, no matter what another thread did during the fork. In the
    // child, glibc's recursive mutex still belongs to the parent's thread, so a new one is made.
    pthread_atfork(
        [] { state().mutex.lock(); },
        [] { state().mutex.unlock(); },
        [] { new (&state().mutex) std::recursive_mutex; });
    current = new State;
    return true;
  }();
  (void)made;
  return *current;
}

void restart() {
  auto* const fresh = new State;
  fresh->kernel_names = std::move(state().kernel_names); // torch's libraries register them once
  current = fresh;
}

State::State()
    : options(Options::from_environment()),
      time(options),
      calls(options.log),
      race(options.race, options.log),
      memory(options),
      host(options) {
  host_clock.tick(kHost);
}

Stream* State::add_stream(int device, unsigned flags, int priority, std::string name) {
  name += " of device " + std::to_string(device);
  auto made = std::make_unique<Stream>(
      device, flags, priority, race.add_actor(std::move(name)), options.async, options.delay_us);
  Stream* stream = made.get();
  streams_.emplace(stream, std::move(made));
  return stream;
}

Stream* State::special_stream(
    std::map<std::pair<int, uintptr_t>, Stream*>& table,
    int device,
    uintptr_t thread,
    const char* name) {
  Stream*& stream = table[{device, thread}];
  if (stream == nullptr) {
    stream = add_stream(device, 0, 0, name);
    ++special_streams_;
  }
  return stream;
}

Stream* State::stream(cudaStream_t handle) {
  const int device = this_thread().device;
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number == kPerThreadStreamHandle) {
    return special_stream(thread_streams_, device, this_thread_id(), "a thread's default stream");
  }
  if (number <= kLegacyStreamHandle) {
    return special_stream(legacy_streams_, device, 0, "the default stream");
  }
  const auto it = streams_.find(handle);
  if (it == streams_.end()) {
    race.misused("a stream that there is not, or no longer, is used: hardware would crash");
    return nullptr;
  }
  return it->second.get();
}

Event* State::event(cudaEvent_t handle) {
  const auto it = events_.find(handle);
  return it == events_.end() ? nullptr : it->second.get();
}

Stream* State::create_stream(int device, unsigned flags, int priority) {
  static int number = 0;
  return add_stream(device, flags, priority, "stream " + std::to_string(++number));
}

void State::destroy_stream(Stream* stream) {
  retired_[stream->device].join(stream->clock);
  stream->queue->stop();
  streams_.erase(stream);
}

Event* State::create_event(int device, unsigned flags) {
  auto made = std::make_unique<Event>(Event{flags, device, nullptr});
  Event* event = made.get();
  events_.emplace(event, std::move(made));
  return event;
}

void State::destroy_event(Event* event) {
  events_.erase(event);
}

std::vector<Stream*> State::streams_of(int device) {
  std::vector<Stream*> found;
  for (const auto& [handle, stream] : streams_) {
    if (stream->device == device)
      found.push_back(stream.get());
  }
  return found;
}

// Orders the stream's next operation after all work of the other one.
void State::wait_for(Stream& stream, Stream& other) {
  stream.clock.join(other.clock);
  stream.ready = std::max(stream.ready, other.ready);
  if (!options.async || other.queue->idle())
    return;
  auto marker = std::make_shared<Marker>(other.clock, 0, 0, other.ready);
  other.queue->push([marker] { marker->complete(); });
  stream.queue->push([marker] { marker->wait(); });
}

void State::begin_operation(Stream& stream) {
  const auto legacy = legacy_streams_.find({stream.device, 0});
  if (legacy != legacy_streams_.end() && stream.blocking()) {
    if (legacy->second == &stream) {
      for (Stream* other : streams_of(stream.device)) {
        if (other != &stream && other->blocking())
          wait_for(stream, *other);
      }
    } else {
      wait_for(stream, *legacy->second);
    }
  }
  stream.clock.join(host_clock);
  stream.clock.tick(stream.actor);
  stream.ready = std::max(stream.ready, time.issue(Clockwork::kCall));
}

void State::host_joins(const VectorClock& clock) {
  host_clock.join(clock);
  host_clock.tick(kHost);
}

VectorClock State::device_clock(int device) {
  VectorClock clock = retired_[device];
  for (const Stream* stream : streams_of(device))
    clock.join(stream->clock);
  return clock;
}

double State::device_ready(int device) {
  double ready = 0;
  for (const Stream* stream : streams_of(device))
    ready = std::max(ready, stream->ready);
  return ready;
}

std::shared_ptr<Marker> State::record(Stream& stream) {
  begin_operation(stream);
  auto marker =
      std::make_shared<Marker>(stream.clock, stream.capture, options.query_notready, stream.ready);
  // So that the next work of an operator that is running is ordered after it.
  stream.clock.tick(stream.actor);
  stream.queue->push([marker] { marker->complete(); });
  return marker;
}

ThreadState& this_thread() {
  thread_local ThreadState thread;
  return thread;
}

uintptr_t this_thread_id() {
  return reinterpret_cast<uintptr_t>(&this_thread());
}

cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess)
    this_thread().last_error = error;
  return error;
}

void log(const char* format, ...) {
  if (!state().options.log)
    return;
  std::va_list arguments;
  va_start(arguments, format);
  std::fputs("[simcuda] ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}

void drain(Stream& stream) {
  const std::shared_ptr<WorkQueue> queue = stream.queue;
  queue->wait_until_idle();
}

void drain_device(int device) {
  std::vector<std::shared_ptr<WorkQueue>> queues;
  {
    const Lock lock(state().mutex);
    for (const Stream* stream : state().streams_of(device))
      queues.push_back(stream->queue);
  }
  for (const auto& queue : queues)
    queue->wait_until_idle();
}

void synchronize(Stream& stream) {
  VectorClock clock;
  {
    const Lock lock(state().mutex);
    // The legacy stream waits for the blocking streams, and each of these waits for the legacy
    // stream.
    state().begin_operation(stream);
    clock = stream.clock;
    stream.clock.tick(stream.actor);
    state().time.wait(stream.ready);
  }
  drain(stream);
  const Lock lock(state().mutex);
  state().host_joins(clock);
}

void synchronize_device(int device) {
  VectorClock clock;
  {
    const Lock lock(state().mutex);
    clock = state().device_clock(device);
    state().time.wait(state().device_ready(device));
  }
  drain_device(device);
  const Lock lock(state().mutex);
  state().host_joins(clock);
}

} // namespace simcuda
