#include <torch/csrc/cuda/lms/follow/places.h>

#include <torch/csrc/cuda/lms/plan/offsets.h>

#include <algorithm>
#include <utility>

namespace torch::cuda::lms {
namespace {

// A time of which a block is on the device.
struct Presence {
  int64_t begin;
  int64_t end;
  size_t comes = plan::Handover::kNobody; // the move that brings it
  size_t goes = plan::Handover::kNobody; // the move that ends it
};

// Takes the time out of those in which a move has the block away.
void leave(std::vector<Presence>& times, int64_t begin, int64_t end, size_t move) {
  std::vector<Presence> rest;
  for (const Presence& time : times) {
    if (time.begin < std::min(begin, time.end)) {
      rest.push_back(time);
      if (begin < time.end) {
        rest.back().end = begin;
        rest.back().goes = move;
      }
    }
    if (std::max(end, time.begin) < time.end) {
      rest.push_back(time);
      if (end > time.begin) {
        rest.back().begin = end;
        rest.back().comes = move;
      }
    }
  }
  times = std::move(rest);
}

// When each block is on the device, by number.
std::vector<std::vector<Presence>> presences(
    const Lives& lives,
    const std::vector<plan::Move>& moves,
    const std::vector<uint32_t>& links,
    const std::vector<bool>& stay) {
  std::vector<std::vector<Presence>> times(lives.of().size());
  for (size_t n = 1; n < times.size(); ++n) {
    const Lives::Life& life = lives.of()[n];
    if (lives.placed(n, stay) && life.begin < life.end) {
      times[n].push_back({life.begin, life.end});
    }
  }
  const plan::Place size = lives.size();
  for (size_t k = 0; k < moves.size(); ++k) {
    const auto away = [&](size_t number, plan::Place begin, plan::Place end) {
      if (number < times.size() && begin < end) {
        leave(times[number], lives.begin(begin), lives.begin(end), k);
      }
    };
    const plan::Move& move = moves[k];
    const uint32_t number = move.block + 1;
    const uint32_t next = number < links.size() ? links[number] : 0;
    if (move.copy_after == plan::Move::kNone) {
      away(number, 0, size);
      continue;
    }
    const plan::Place drop = std::max(move.drop_before, move.last_use + 1);
    const plan::Place fetch = move.returns() ? move.fetch_before : size;
    away(number, drop, std::min(fetch, size));
    if (next > 0 && move.returns() && fetch > size) {
      away(next, std::max<plan::Place>(drop - size, 0), fetch - size);
    }
  }
  return times;
}

} // namespace

Places::Places(
    const Lives& lives,
    const std::vector<plan::Move>& moves,
    const std::vector<uint32_t>& links,
    const std::vector<bool>& stay,
    const std::vector<Rest>& rest,
    int64_t limit)
    : lives_(lives) {
  const int64_t period = lives.period();
  const std::vector<std::vector<Presence>> times = presences(lives, moves, links, stay);
  const auto comes = [&](size_t n) { return !times[n].empty() && times[n].front().begin == 0; };
  const auto goes_on = [&](size_t n) {
    return lives.of()[n].goes_on && !times[n].empty() && times[n].back().end == period;
  };
  const auto always = [&](size_t n) { return comes(n) && times[n].front().end == period; };
  // Who goes on to the next iteration, where it may have another number, keeps its memory there.
  // Blocks that are there all the time have their memory by number.
  std::vector<uint32_t> earlier(times.size()); // number in the iteration before; 0 if none
  for (uint32_t n = 1; n < times.size(); ++n) {
    const uint32_t next = n < links.size() ? links[n] : 0;
    if (next > 0 && next < times.size() && goes_on(n) && comes(next) && !always(n) &&
        !always(next)) {
      earlier[next] = n;
    }
  }
  stays_.resize(times.size());
  std::vector<plan::Span> spans;
  std::vector<size_t> comes_by; // of each span: the move that brings it
  std::vector<size_t> goes_by; // of each span: the move that ends it
  std::vector<std::vector<size_t>> spans_of(times.size()); // by number, and stay
  for (size_t n = 1; n < times.size(); ++n) {
    const auto bytes = static_cast<int64_t>(rounded(static_cast<size_t>(lives.of()[n].bytes)));
    for (const Presence& time : times[n]) {
      stays_[n].push_back({time.begin, time.end, 0});
      const bool goes_on_here = earlier[n] > 0 && time.begin == 0;
      spans_of[n].push_back(goes_on_here ? SIZE_MAX : spans.size());
      if (!goes_on_here) {
        spans.push_back({bytes, time.begin, time.end});
        comes_by.push_back(time.comes);
        goes_by.push_back(time.goes);
      }
    }
  }
  const auto extend = [&](size_t n, int64_t end) {
    plan::Span& span = spans[spans_of[n].back()];
    span.end = std::min(period + end, span.begin + period);
  };
  for (size_t n = 1; n < times.size(); ++n) {
    if (const uint32_t before = earlier[n]) {
      spans_of[n].front() = spans_of[before].back();
      extend(before, times[n].front().end);
      goes_by[spans_of[n].front()] = times[n].front().goes;
    }
  }
  for (const Rest& other : rest) {
    const size_t n = other.number;
    if (n > 0 && n < times.size() && goes_on(n) && !always(n)) {
      extend(n, lives.begin(other.freed + 1)); // it is freed in the next iteration
    }
  }
  load_ = plan::load(spans, period);
  const std::vector<int64_t> offsets =
      plan::offsets(spans, period, limit - limit % static_cast<int64_t>(kGrain));
  if (offsets.empty()) {
    return;
  }
  for (const auto& [before, after] : plan::heirs(spans, period, offsets)) {
    if (goes_by[before] != plan::Handover::kNobody) {
      handovers_.push_back({goes_by[before], comes_by[after], lives.at(spans[after].begin)});
    }
  }
  for (size_t n = 1; n < stays_.size(); ++n) {
    for (size_t k = 0; k < stays_[n].size(); ++k) {
      const size_t span = spans_of[n][k];
      stays_[n][k].offset = offsets[span];
      bytes_ = std::max(bytes_, static_cast<size_t>(offsets[span] + spans[span].bytes));
    }
  }
}

std::optional<size_t> Places::at(uint32_t number, plan::Place place) const {
  if (number < stays_.size()) {
    const int64_t now = place < 0 ? 0 : lives_.begin(place);
    for (const Stay& stay : stays_[number]) {
      if (now < stay.end) {
        return static_cast<size_t>(stay.offset);
      }
    }
  }
  return std::nullopt;
}

} // namespace torch::cuda::lms
