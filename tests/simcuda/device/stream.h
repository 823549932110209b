// Streams, events, and how they order work on the device.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "cuda_types.h"
#include "race.h"

namespace simcuda {

// A point in a stream's work, made by recording an event.
class Marker {
 public:
  Marker(VectorClock clock, uint64_t capture, int query_notready, double at)
      : clock(std::move(clock)), capture(capture), at(at), notready_(query_notready) {}

  void complete();
  void wait();
  bool query(); // whether it is done, less the "not ready" answers that a test asked for
  std::chrono::steady_clock::time_point time();

  const VectorClock clock;
  const uint64_t capture; // the capture in which it was recorded; 0 if none
  const double at; // when the work before it is done, in the model of time; seconds

 private:
  std::mutex mutex_;
  std::condition_variable completed_;
  bool done_ = false;
  int notready_;
  std::chrono::steady_clock::time_point time_;
};

struct Event {
  unsigned flags;
  int device;
  std::shared_ptr<Marker> marker; // of the latest record
};

// The work of one stream. It is executed at once, or in asynchronous mode by a separate thread.
class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  WorkQueue(bool async, int delay_us, unsigned seed)
      : async_(async), delay_us_(delay_us), random_(seed) {}

  void push(std::function<void()> work);
  void wait_until_idle();
  bool idle();
  void stop(); // ends the thread when the queue is empty

 private:
  void run();

  const bool async_;
  const int delay_us_;
  std::minstd_rand random_;
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::condition_variable became_idle_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;
  bool started_ = false;
  bool stopping_ = false;
};

struct Stream {
  Stream(int device, unsigned flags, int priority, Actor actor, bool async, int delay_us)
      : device(device),
        flags(flags),
        priority(priority),
        actor(actor),
        queue(std::make_shared<WorkQueue>(async, delay_us, static_cast<unsigned>(actor))) {}

  // Whether the legacy stream of its device waits for it, and vice versa.
  bool blocking() const {
    return (flags & kStreamNonBlocking) == 0;
  }

  const int device;
  const unsigned flags;
  const int priority;
  const Actor actor;
  VectorClock clock;
  double ready = 0; // when its work is done, in the model of time; seconds
  uint64_t capture = 0; // the capture that it takes part in; 0 if none
  const std::shared_ptr<WorkQueue> queue;
};

} // namespace simcuda
