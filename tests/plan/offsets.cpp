// Offsets for ctypes: arrays that the caller owns.

#include <torch/csrc/cuda/lms/plan/offsets.h>

#include <algorithm>

using namespace torch::cuda::lms::plan;

namespace {

// Of each span: its bytes, begin and end.
std::vector<Span> spans_of(int64_t count, const int64_t* numbers) {
  std::vector<Span> spans;
  for (int64_t i = 0; i < count; ++i) {
    spans.push_back({numbers[3 * i], numbers[3 * i + 1], numbers[3 * i + 2]});
  }
  return spans;
}

} // namespace

extern "C" int64_t lms_load(int64_t count, const int64_t* numbers, int64_t period) {
  return load(spans_of(count, numbers), period);
}

// Returns whether there are offsets.
extern "C" int64_t
lms_offsets(int64_t count, const int64_t* numbers, int64_t period, int64_t limit, int64_t* found) {
  const std::vector<int64_t> result = offsets(spans_of(count, numbers), period, limit);
  std::copy(result.begin(), result.end(), found);
  return !result.empty();
}

// Returns how many pairs there are; `found` has room for count * count.
extern "C" int64_t lms_heirs(
    int64_t count,
    const int64_t* numbers,
    int64_t period,
    const int64_t* offsets,
    int64_t* found) {
  const std::vector<int64_t> places(offsets, offsets + count);
  const auto pairs = heirs(spans_of(count, numbers), period, places);
  for (const auto& [before, after] : pairs) {
    *found++ = static_cast<int64_t>(before);
    *found++ = static_cast<int64_t>(after);
  }
  return static_cast<int64_t>(pairs.size());
}
