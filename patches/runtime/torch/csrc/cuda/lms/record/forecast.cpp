#include <torch/csrc/cuda/lms/record/forecast.h>

#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/plan/on_demand.h>
#include <torch/csrc/cuda/lms/plan/planner.h>
#include <torch/csrc/cuda/lms/record/iteration.h>

#include <algorithm>
#include <stdexcept>

namespace torch::cuda::lms {

namespace {

lms_prediction of(const plan::Prediction& prediction) {
  return {
      prediction.seconds,
      prediction.stall_seconds,
      prediction.bytes_out,
      prediction.bytes_in,
      prediction.peak_bytes};
}

} // namespace

Forecast::Forecast(
    const void* events,
    size_t event_count,
    const char* const* names,
    size_t name_count,
    int64_t unmanaged_bytes,
    const lms_machine& machine) {
  const auto* const first = static_cast<const TraceEvent*>(events);
  trace =
      last_iteration({first, first + event_count}, {names, names + name_count}, unmanaged_bytes);
  if (trace.operators.empty()) {
    throw std::runtime_error("the trace has no complete iteration: record at least two steps");
  }
  plan::Machine given;
  given.limit = static_cast<int64_t>(machine.limit);
  given.out_rate = machine.out_rate;
  given.in_rate = machine.in_rate;
  given.overhead = machine.overhead;
  plan::Machine compressing = given;
  compressing.out_rate *= machine.planned_speedup;
  compressing.in_rate *= machine.planned_speedup;
  planned = plan::plan(trace, compressing);
  if (!planned.problem.empty()) {
    throw std::runtime_error(planned.problem);
  }
  living = plan::living(trace);
  on_demand = plan::on_demand(trace, given);
}

lms_simulation Forecast::totals() const {
  lms_simulation result = {};
  result.operators = trace.size();
  result.blocks = static_cast<int64_t>(trace.blocks.size());
  result.compute_seconds = trace.seconds();
  result.peak_bytes = *std::max_element(living.begin(), living.end());
  result.fits = planned.fits;
  result.planned = of(planned.prediction);
  result.on_demand = of(on_demand);
  result.bound_seconds = planned.bound.seconds;
  return result;
}

} // namespace torch::cuda::lms
