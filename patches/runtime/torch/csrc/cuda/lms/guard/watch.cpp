#include <torch/csrc/cuda/lms/guard/watch.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/device/runtime.h>
#include <torch/csrc/cuda/lms/guard/counter.h>
#include <torch/csrc/cuda/lms/guard/guard.h>

namespace torch::cuda::lms {

std::atomic<Watch::Phase> Watch::phase{Watch::Phase::Off};

Watch& Watch::get() {
  static auto* const instance = new Watch;
  return *instance;
}

void Watch::start(bool at_once) {
  // If LMS was on before, running operators are already counted: see stop().
  counter_ = counter_ || Counter::install();
  phase = Phase::Counting;
  if (at_once || !counter_) {
    begin();
  }
}

void Watch::leave() {
  leaving_ = true;
}

void Watch::stay() {
  leaving_ = false;
}

void Watch::stop() {
  leaving_ = false;
  // In this order, so that an operator that begins between the two calls is both counted and seen.
  counter_ = counter_ || Counter::install();
  Guard::remove();
  phase = Phase::Off;
}

void Watch::begin() {
  if (!counting()) {
    return;
  }
  if (!Lock::held()) {
    const Lock lock;
    begin();
    return;
  }
  Guard::install();
  Counter::remove();
  counter_ = false;
  phase = Phase::Settling;
}

bool Watch::settled() {
  if (leaving_) {
    return false;
  }
  if (phase != Phase::Settling) {
    return phase == Phase::Watching;
  }
  bool capturing = false;
  Runtime::get().each([&](Pager& pager) { capturing = capturing || pager.pools.capturing(); });
  if (capturing || !Counter::none_runs()) {
    return false;
  }
  try {
    Runtime::get().each([](Pager& pager) { pager.mover.synchronize(); });
  } catch (const c10::Error&) {
    return false; // the next request tries again
  }
  // Other threads may have gone on meanwhile.
  if (leaving_) {
    return false;
  }
  if (phase != Phase::Settling) {
    return phase == Phase::Watching;
  }
  if (!Counter::none_runs()) {
    return false;
  }
  phase = Phase::Watching;
  return true;
}

void Watch::counted_late() {
  if (phase == Phase::Off) {
    return;
  }
  const Lock lock;
  if (phase == Phase::Watching || phase == Phase::Settling) {
    // Before the page-ins, because these pause the mutex: nothing may be paged out meanwhile.
    phase = Phase::Settling;
    // Even if the phase was this one: another such operator may be waiting for its page-ins.
    Runtime::get().each([](Pager& pager) { pager.bring_all(); });
  }
}

} // namespace torch::cuda::lms
