#pragma once

#include <torch/csrc/cuda/lms/plan/ledger.h>
#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <cmath>

namespace torch::cuda::lms::plan {

// Plays iterations of `size` operators until two take the same time, at most as many as given, and
// sets what the prediction says of the last one. `play` plays one operator of an iteration, writes
// its start and its movements into the prediction, and returns false to stop. `end` is when the
// last operator ended, in seconds.
template <class Play>
void play_until_steady(
    Place size,
    int iterations,
    const double& end,
    Ledger& ledger,
    Prediction& prediction,
    Play play) {
  prediction.starts.resize(size);
  prediction.stalls.resize(size);
  prediction.causes.resize(size);
  prediction.curve.resize(size);
  double last = -1;
  bool goes_on = true;
  for (int iteration = 0; iteration < iterations && goes_on; ++iteration) {
    const double begin = end;
    prediction.stall_seconds = 0;
    prediction.bytes_out = prediction.bytes_in = 0;
    prediction.movements.clear();
    ledger.forget_peak();
    for (Place place = 0; place < size && goes_on; ++place) {
      goes_on = play(place);
      prediction.starts[place] -= begin;
    }
    for (Movement& movement : prediction.movements) {
      movement.begin -= begin;
      movement.end -= begin;
    }
    prediction.seconds = end - begin;
    prediction.peak_bytes = ledger.peak();
    // The first iteration begins with idle links, and with what the plan leaves at an end.
    if (iteration > 1 && std::abs(prediction.seconds - last) <= 1e-9 * prediction.seconds) {
      break;
    }
    last = prediction.seconds;
  }
}

} // namespace torch::cuda::lms::plan
