#include <torch/csrc/cuda/lms/follow/lives.h>

#include <torch/csrc/cuda/lms/plan/offsets.h>

namespace torch::cuda::lms {

using Kind = TraceEvent::Kind;

Lives::Lives(const std::vector<TraceEvent>& recorded)
    : period_(static_cast<int64_t>(recorded.size())) {
  for (size_t i = 0; i < recorded.size(); ++i) {
    const TraceEvent& event = recorded[i];
    const auto now = static_cast<int64_t>(i);
    if (event.kind == Kind::Operator) {
      operators_.push_back(now);
    } else if (event.kind == Kind::Allocated || event.kind == Kind::Known) {
      lives_.resize(std::max<size_t>(lives_.size(), event.block + 1));
      const bool known = event.kind == Kind::Known;
      const auto bytes = static_cast<int64_t>(event.value);
      lives_[event.block] = {bytes, known ? 0 : now, period_, known, true};
    } else if (event.kind == Kind::Freed && event.block < lives_.size()) {
      lives_[event.block].end = now;
      lives_[event.block].goes_on = false;
    }
  }
  // That a workspace was freed is noted when it is allocated. The operator has it until it ends, or
  // at least until it allocates something else.
  for (Life& life : lives_) {
    if (!life.from_before && !life.goes_on && life.end == life.begin + 1) {
      const auto next = std::find_if(
          recorded.begin() + static_cast<std::ptrdiff_t>(life.end),
          recorded.end(),
          [](const TraceEvent& event) {
            return event.kind == Kind::Allocated || event.kind == Kind::Operator;
          });
      life.end = next - recorded.begin();
    }
  }
}

int64_t Lives::without_place(const std::vector<bool>& stay) const {
  std::vector<plan::Span> spans;
  for (size_t n = 1; n < lives_.size(); ++n) {
    if (!placed(n, stay) && lives_[n].begin < lives_[n].end) {
      spans.push_back({lives_[n].bytes, lives_[n].begin, lives_[n].end});
    }
  }
  return plan::load(spans, period_);
}

} // namespace torch::cuda::lms
