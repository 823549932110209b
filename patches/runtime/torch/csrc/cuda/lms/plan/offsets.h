#pragma once

#include <cstdint>
#include <vector>

namespace torch::cuda::lms::plan {

// Memory that is needed for a time, in each repetition of an iteration.
struct Span {
  int64_t bytes = 0;
  // From `begin`, which is within the iteration, to `end`, which is later by one iteration at most.
  int64_t begin = 0;
  int64_t end = 0;
};

// Most bytes that are needed at the same time. An iteration takes `period`.
int64_t load(const std::vector<Span>& spans, int64_t period);

// An offset for each span, so that those that are needed at the same time do not overlap, and all
// end within `limit` bytes. Empty if none were found. That is the dynamic storage allocation
// problem, which is NP-hard. The largest come first, each at the lowest offset that is free for all
// its time. If one finds none, it comes earlier the next time, by chance, but the same in each
// call.
std::vector<int64_t> offsets(const std::vector<Span>& spans, int64_t period, int64_t limit);

} // namespace torch::cuda::lms::plan
