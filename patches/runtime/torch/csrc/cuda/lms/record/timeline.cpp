#include <torch/csrc/cuda/lms/record/timeline.h>

#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/record/forecast.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

namespace {

// Blocks that no operator uses, in ascending order.
std::vector<int64_t> unused(const plan::Trace& trace) {
  std::vector<bool> used(trace.blocks.size());
  for (const plan::Operator& op : trace.operators) {
    for (const plan::Access& access : op.accesses) {
      used[access.block] = true;
    }
  }
  std::vector<int64_t> blocks;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i] && trace.blocks[i].persistent()) {
      blocks.push_back(static_cast<int64_t>(i));
    }
  }
  return blocks;
}

// Blocks that are never on the device.
std::vector<int64_t> absent(const plan::Plan& plan) {
  std::vector<int64_t> blocks;
  for (const plan::Move& move : plan.moves) {
    if (move.copy_after == plan::Move::kNone) {
      blocks.push_back(static_cast<int64_t>(move.block));
    }
  }
  return blocks;
}

struct Course {
  Course(const plan::Prediction& prediction, const std::vector<int64_t>& absent) {
    for (const int64_t block : absent) {
      movements.push_back({static_cast<int64_t>(plan::Movement::Kind::Drop), block, 0, 0, 0});
    }
    for (size_t i = 0; i < prediction.starts.size(); ++i) {
      starts.push_back(
          {prediction.starts[i],
           prediction.stalls[i],
           static_cast<int64_t>(prediction.causes[i]),
           prediction.curve[i]});
    }
    for (const plan::Movement& movement : prediction.movements) {
      movements.push_back(
          {static_cast<int64_t>(movement.kind),
           static_cast<int64_t>(movement.block),
           movement.place,
           movement.begin,
           movement.end});
    }
  }

  lms_timeline_course view() const {
    return {starts.data(), movements.data(), movements.size()};
  }

  std::vector<lms_timeline_start> starts;
  std::vector<lms_timeline_movement> movements;
};

// Owns what an lms_timeline points to.
class Details {
 public:
  explicit Details(Forecast given)
      : forecast_(std::move(given)),
        planned_(forecast_.planned.prediction, absent(forecast_.planned)),
        on_demand_(forecast_.on_demand, unused(forecast_.trace)) {
    const plan::Trace& trace = forecast_.trace;
    const std::vector<int64_t> needed = plan::needed(trace);
    for (plan::Place place = 0; place < trace.size(); ++place) {
      const plan::Operator& op = trace.operators[place];
      operators_.push_back({op.name.c_str(), op.seconds, forecast_.living[place], needed[place]});
      for (const plan::Access& access : op.accesses) {
        accesses_.push_back({place, static_cast<int64_t>(access.block), access.writes});
      }
    }
    for (const plan::Block& block : trace.blocks) {
      blocks_.push_back({block.bytes, block.allocated, block.freed});
    }
  }

  lms_timeline view() const {
    return {
        forecast_.totals(),
        operators_.data(),
        blocks_.data(),
        accesses_.data(),
        accesses_.size(),
        planned_.view(),
        on_demand_.view()};
  }

 private:
  const Forecast forecast_;
  const Course planned_;
  const Course on_demand_;
  std::vector<lms_timeline_operator> operators_;
  std::vector<lms_timeline_block> blocks_;
  std::vector<lms_timeline_access> accesses_;
};

} // namespace

} // namespace torch::cuda::lms

int lms_simulate_timeline(
    const void* events,
    size_t event_count,
    const char* const* names,
    size_t name_count,
    int64_t unmanaged_bytes,
    const lms_machine* machine,
    lms_timeline* result,
    const char** why) {
  using namespace torch::cuda::lms;
  static thread_local std::unique_ptr<Details> last;
  static thread_local std::string problem;
  problem.clear();
  last.reset();
  try {
    last = std::make_unique<Details>(
        Forecast(events, event_count, names, name_count, unmanaged_bytes, *machine));
    *result = last->view();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  *why = problem.c_str();
  return problem.empty() ? 0 : 1;
}
