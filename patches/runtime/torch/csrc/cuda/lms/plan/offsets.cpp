#include <torch/csrc/cuda/lms/plan/offsets.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <queue>
#include <random>
#include <tuple>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

constexpr int64_t kNone = -1; // offset
constexpr size_t kMost = 4096; // spans; for more, the effort is not worth it
constexpr size_t kEffort = 2'000'000; // neighbours that are looked at in an attempt; some 100 ms
constexpr int kAttempts = 4;
constexpr double kNoise = 0.3;

bool together(const Span& a, const Span& b, int64_t period) {
  const auto meet = [](const Span& x, const Span& y, int64_t shift) {
    return x.begin < y.end + shift && y.begin + shift < x.end;
  };
  return meet(a, b, 0) || meet(a, b, period) || meet(a, b, -period);
}

class Packer {
 public:
  Packer(const std::vector<Span>& spans, int64_t period, int64_t limit)
      : spans_(spans),
        limit_(limit),
        offsets_(spans.size(), kNone),
        neighbours_(spans.size()),
        weights_(spans.size(), 1) {
    for (size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].end - spans[i].begin >= period) {
        // They may be at the bottom: what lies below one of them never meets what lies above.
        offsets_[i] = floor_;
        floor_ += spans[i].bytes;
      } else {
        order_.push_back(i);
      }
    }
    for (size_t k = 0; k < order_.size(); ++k) {
      for (size_t l = 0; l < k; ++l) {
        if (together(spans[order_[k]], spans[order_[l]], period)) {
          neighbours_[order_[k]].push_back(order_[l]);
          neighbours_[order_[l]].push_back(order_[k]);
        }
      }
    }
  }

  std::vector<int64_t> run() {
    std::sort(order_.begin(), order_.end(), [this](size_t a, size_t b) {
      const auto key = [this](size_t i) {
        return std::make_tuple(-spans_[i].bytes, spans_[i].begin, i);
      };
      return key(a) < key(b);
    });
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (search()) {
        return offsets_;
      }
    }
    return {};
  }

 private:
  // What is beside a span in memory at some of its times.
  struct Taken {
    int64_t begin; // offsets
    int64_t end;
    size_t span;
  };

  bool search() {
    waiting_ = {};
    for (const size_t i : order_) {
      offsets_[i] = kNone;
      weights_[i] = 1;
    }
    for (const size_t i : order_) {
      look(i);
      if (!place(i, lowest(i))) {
        wait(i);
      }
    }
    for (size_t effort = kEffort; !waiting_.empty();) {
      const size_t i = waiting_.top().second;
      waiting_.pop();
      if (effort < neighbours_[i].size() + 1) {
        return false;
      }
      effort -= neighbours_[i].size() + 1;
      look(i);
      if (!place(i, lowest(i))) {
        displace(i, cheapest(i));
      }
    }
    return true;
  }

  // Notes what has an offset and is needed together with this span, in the order of the offsets.
  void look(size_t i) {
    taken_.clear();
    for (const size_t other : neighbours_[i]) {
      if (offsets_[other] != kNone) {
        taken_.push_back({offsets_[other], offsets_[other] + spans_[other].bytes, other});
      }
    }
    std::sort(taken_.begin(), taken_.end(), [](const Taken& a, const Taken& b) {
      return a.begin < b.begin;
    });
  }

  // The lowest offset that is free for all the span's time.
  int64_t lowest(size_t i) const {
    int64_t offset = floor_;
    for (const Taken& taken : taken_) {
      if (taken.begin - offset >= spans_[i].bytes) {
        break;
      }
      offset = std::max(offset, taken.end);
    }
    return offset;
  }

  // What it costs if the span has to find another offset. What is large or long finds none easily.
  double cost(size_t i) const {
    const auto length = static_cast<double>(spans_[i].end - spans_[i].begin);
    return weights_[i] * static_cast<double>(spans_[i].bytes) * std::sqrt(length);
  }

  // The offset at which the span is in the way of what costs the least; of what costs nearly as
  // much, chance takes one.
  int64_t cheapest(size_t i) {
    const int64_t bytes = spans_[i].bytes;
    candidates_.assign({floor_, limit_ - bytes});
    begins_.clear();
    ends_.clear();
    for (const Taken& taken : taken_) {
      begins_.emplace_back(taken.begin, cost(taken.span));
      ends_.emplace_back(taken.end, cost(taken.span));
      if (taken.end <= limit_ - bytes) {
        candidates_.push_back(taken.end);
      }
      if (taken.begin >= floor_ + bytes) {
        candidates_.push_back(taken.begin - bytes);
      }
    }
    std::sort(ends_.begin(), ends_.end());
    std::sort(candidates_.begin(), candidates_.end());
    auto begin = begins_.begin();
    auto end = ends_.begin();
    double now = 0; // of what meets the candidate
    double least = std::numeric_limits<double>::infinity();
    int64_t best = floor_;
    for (const int64_t offset : candidates_) {
      for (; begin != begins_.end() && begin->first < offset + bytes; ++begin) {
        now += begin->second;
      }
      for (; end != ends_.end() && end->first <= offset; ++end) {
        now -= end->second;
      }
      const double noise = 1 + kNoise * static_cast<double>(chance_() % 1024) / 1024;
      if (now * noise < least) {
        least = now * noise;
        best = offset;
      }
    }
    return best;
  }

  bool place(size_t i, int64_t offset) {
    if (offset + spans_[i].bytes > limit_) {
      return false;
    }
    offsets_[i] = offset;
    return true;
  }

  // Places the span, and those that are in its way have to find another offset. That costs more
  // each time, so that the same spans do not displace each other for ever.
  void displace(size_t i, int64_t offset) {
    for (const Taken& taken : taken_) {
      if (taken.begin < offset + spans_[i].bytes && offset < taken.end) {
        offsets_[taken.span] = kNone;
        weights_[taken.span] += 1;
        wait(taken.span);
      }
    }
    offsets_[i] = offset;
  }

  // The largest is placed next.
  void wait(size_t i) {
    waiting_.emplace(spans_[i].bytes, i);
  }

  const std::vector<Span>& spans_;
  const int64_t limit_;
  std::vector<int64_t> offsets_;
  std::vector<std::vector<size_t>> neighbours_; // that are needed at the same time
  std::vector<double> weights_; // more for each time that it was displaced
  std::vector<size_t> order_; // what is not needed all the time
  std::priority_queue<std::pair<int64_t, size_t>> waiting_; // bytes, span; for an offset
  std::vector<Taken> taken_;
  std::vector<std::pair<int64_t, double>> begins_; // of what is taken, with its cost
  std::vector<std::pair<int64_t, double>> ends_;
  std::vector<int64_t> candidates_;
  std::minstd_rand chance_;
  int64_t floor_ = 0; // above what is needed all the time
};

} // namespace

int64_t load(const std::vector<Span>& spans, int64_t period) {
  std::vector<std::pair<int64_t, int64_t>> changes; // time, bytes: ends come first
  int64_t now = 0; // at the iteration's begin
  for (const Span& span : spans) {
    const bool wraps = span.end > period;
    now += wraps ? span.bytes : 0;
    changes.emplace_back(span.begin, span.bytes);
    changes.emplace_back(wraps ? span.end - period : span.end, -span.bytes);
  }
  std::sort(changes.begin(), changes.end());
  int64_t most = now;
  for (const auto& change : changes) {
    now += change.second;
    most = std::max(most, now);
  }
  return most;
}

std::vector<int64_t> offsets(const std::vector<Span>& spans, int64_t period, int64_t limit) {
  if (spans.size() > kMost || load(spans, period) > limit) {
    return {};
  }
  return Packer(spans, period, limit).run();
}

std::vector<std::pair<size_t, size_t>>
heirs(const std::vector<Span>& spans, int64_t period, const std::vector<int64_t>& offsets) {
  const auto top = [&](size_t i) { return offsets[i] + spans[i].bytes; };
  std::vector<std::pair<size_t, size_t>> pairs;
  std::vector<std::pair<int64_t, size_t>> before; // how long ago it ended, which
  std::vector<std::pair<int64_t, int64_t>> open; // offsets whose last owner is not found yet
  for (size_t i = 0; i < spans.size(); ++i) {
    before.clear();
    for (size_t k = 0; k < spans.size(); ++k) {
      if (offsets[k] < top(i) && offsets[i] < top(k)) {
        const int64_t since = (spans[i].begin - spans[k].end) % period;
        before.emplace_back(since < 0 ? since + period : since, k);
      }
    }
    std::sort(before.begin(), before.end());
    open.assign(1, {offsets[i], top(i)});
    for (auto last = before.begin(); last != before.end() && !open.empty(); ++last) {
      const size_t k = last->second;
      std::vector<std::pair<int64_t, int64_t>> rest;
      for (const auto& [begin, end] : open) {
        const int64_t below = std::min(end, offsets[k]);
        const int64_t above = std::max(begin, top(k));
        if (begin < below) {
          rest.emplace_back(begin, below);
        }
        if (above < end) {
          rest.emplace_back(above, end);
        }
      }
      if (rest != open) {
        pairs.emplace_back(k, i);
        open = std::move(rest);
      }
    }
  }
  return pairs;
}

} // namespace torch::cuda::lms::plan
