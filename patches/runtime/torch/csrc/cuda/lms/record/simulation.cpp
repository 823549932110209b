#include <torch/csrc/cuda/lms/record/simulation.h>

#include <torch/csrc/cuda/lms/record/forecast.h>

#include <exception>
#include <string>

int lms_simulate(
    const void* events,
    size_t event_count,
    const char* const* names,
    size_t name_count,
    int64_t unmanaged_bytes,
    const lms_machine* machine,
    lms_simulation* result,
    const char** why) {
  using torch::cuda::lms::Forecast;
  static thread_local std::string problem;
  problem.clear();
  try {
    *result = Forecast(events, event_count, names, name_count, unmanaged_bytes, *machine).totals();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  *why = problem.c_str();
  return problem.empty() ? 0 : 1;
}
