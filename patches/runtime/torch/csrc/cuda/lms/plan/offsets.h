#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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
// its time. One that finds none displaces others, which look for another offset then. Chance
// decides what counts the same, but each call finds the same offsets.
std::vector<int64_t> offsets(const std::vector<Span>& spans, int64_t period, int64_t limit);

// Who gets whose memory: pairs of indices, the one before and the one after. Spans that are one
// after the other at the same offsets are a pair, if none is between them in all of what they
// share.
std::vector<std::pair<size_t, size_t>>
heirs(const std::vector<Span>& spans, int64_t period, const std::vector<int64_t>& offsets);

} // namespace torch::cuda::lms::plan
