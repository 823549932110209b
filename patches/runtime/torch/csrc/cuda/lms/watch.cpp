#include <torch/csrc/cuda/lms/watch.h>

#include <torch/csrc/cuda/lms/counter.h>
#include <torch/csrc/cuda/lms/guard.h>
#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/runtime.h>

namespace torch::cuda::lms {

std::atomic<Watch::Phase> Watch::phase{Phase::Off};

void Watch::start(bool at_once) {
  if (!at_once && Counter::install()) {
    phase = Phase::Counting;
  } else {
    Guard::install();
    phase = Phase::Settling;
  }
}

void Watch::stop() {
  Guard::remove();
  Counter::remove();
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
  phase = Phase::Settling;
}

bool Watch::settled() {
  if (phase != Phase::Settling) {
    return phase == Phase::Watching;
  }
  bool capturing = false;
  Runtime::get().each([&](Pager& pager) { capturing = capturing || pager.capturing(); });
  if (capturing || !Counter::none_runs()) {
    return false;
  }
  try {
    Runtime::get().each([](Pager& pager) { pager.synchronize(); });
  } catch (const c10::Error&) {
    return false; // the next request tries again
  }
  phase = Phase::Watching;
  return true;
}

void Watch::counted_late() {
  const Lock lock;
  if (phase == Phase::Watching) {
    Runtime::get().each([](Pager& pager) { pager.bring_all(); });
    phase = Phase::Settling;
  }
}

} // namespace torch::cuda::lms
