#include <torch/csrc/cuda/lms/record/simulation.h>

#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/plan/on_demand.h>
#include <torch/csrc/cuda/lms/plan/planner.h>
#include <torch/csrc/cuda/lms/record/iteration.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

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

// Empty, or what is wrong.
std::string
simulate(const plan::Trace& trace, const plan::Machine& machine, lms_simulation& result) {
  if (trace.operators.empty()) {
    return "the trace has no complete iteration: record at least two steps";
  }
  const plan::Plan planned = plan::plan(trace, machine);
  if (!planned.problem.empty()) {
    return planned.problem;
  }
  const std::vector<int64_t> living = plan::living(trace);
  result.operators = trace.size();
  result.blocks = static_cast<int64_t>(trace.blocks.size());
  result.compute_seconds = trace.seconds();
  result.peak_bytes = *std::max_element(living.begin(), living.end());
  result.fits = planned.fits;
  result.planned = of(planned.prediction);
  result.on_demand = of(plan::on_demand(trace, machine));
  result.bound_seconds = planned.bound.seconds;
  return "";
}

} // namespace

} // namespace torch::cuda::lms

int lms_simulate(
    const void* events,
    size_t event_count,
    const char* const* names,
    size_t name_count,
    int64_t unmanaged_bytes,
    const lms_machine* machine,
    lms_simulation* result,
    const char** why) {
  using namespace torch::cuda::lms;
  static thread_local std::string problem;
  try {
    const auto* const first = static_cast<const TraceEvent*>(events);
    const plan::Trace trace =
        last_iteration({first, first + event_count}, {names, names + name_count}, unmanaged_bytes);
    plan::Machine given;
    given.limit = static_cast<int64_t>(machine->limit);
    given.out_rate = machine->out_rate;
    given.in_rate = machine->in_rate;
    given.overhead = machine->overhead;
    *result = {};
    problem = simulate(trace, given, *result);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  *why = problem.c_str();
  return problem.empty() ? 0 : 1;
}
