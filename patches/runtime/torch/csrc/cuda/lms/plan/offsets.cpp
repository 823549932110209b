#include <torch/csrc/cuda/lms/plan/offsets.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

constexpr int64_t kNone = -1; // offset
constexpr size_t kMost = 4096; // spans; for more, the effort is not worth it
constexpr size_t kEffort = 16'000'000; // neighbours that are looked at; some 100 ms

bool together(const Span& a, const Span& b, int64_t period) {
  const auto meet = [](const Span& x, const Span& y, int64_t shift) {
    return x.begin < y.end + shift && y.begin + shift < x.end;
  };
  return meet(a, b, 0) || meet(a, b, period) || meet(a, b, -period);
}

// Tries orders of the spans that are not needed all the time.
class Packer {
 public:
  Packer(const std::vector<Span>& spans, int64_t period, int64_t limit)
      : spans_(spans), limit_(limit), offsets_(spans.size(), kNone), neighbours_(spans.size()) {
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
    if (floor_ > limit_) {
      return {};
    }
    const auto length = [this](size_t i) { return spans_[i].end - spans_[i].begin; };
    sort([this](size_t i) { return static_cast<double>(spans_[i].bytes); });
    if (search(kEffort / 2)) {
      return offsets_;
    }
    sort([&](size_t i) {
      return static_cast<double>(spans_[i].bytes) * static_cast<double>(length(i));
    });
    return search(kEffort / 2) ? offsets_ : std::vector<int64_t>();
  }

 private:
  template <class F>
  void sort(F value) {
    std::stable_sort(
        order_.begin(), order_.end(), [&](size_t a, size_t b) { return value(a) > value(b); });
  }

  // A span that finds no offset goes to a place before it, by chance: with the same rule each time,
  // the same orders come back.
  bool search(size_t effort) {
    std::minstd_rand chance;
    size_t place = 0; // in the order: those before it have offsets
    forget(place);
    while (effort > 0) {
      const size_t failed = find(place, effort);
      if (failed == order_.size()) {
        return true;
      }
      if (failed == 0) {
        return false; // it does not fit alone
      }
      place = chance() % failed;
      forget(place);
      const auto first = order_.begin() + static_cast<std::ptrdiff_t>(place);
      const auto last = order_.begin() + static_cast<std::ptrdiff_t>(failed);
      std::rotate(first, last, last + 1);
    }
    return false;
  }

  void forget(size_t from) {
    for (size_t place = from; place < order_.size(); ++place) {
      offsets_[order_[place]] = kNone;
    }
  }

  // Finds offsets from this place of the order on. Returns the place of the first span that has
  // none, or the number of spans.
  size_t find(size_t from, size_t& effort) {
    for (size_t place = from; place < order_.size(); ++place) {
      const size_t i = order_[place];
      effort -= std::min(effort, neighbours_[i].size() + 1);
      const int64_t offset = lowest(i);
      if (offset + spans_[i].bytes > limit_) {
        return place;
      }
      offsets_[i] = offset;
    }
    return order_.size();
  }

  int64_t lowest(size_t i) {
    taken_.clear();
    for (const size_t other : neighbours_[i]) {
      if (offsets_[other] != kNone) {
        taken_.emplace_back(offsets_[other], offsets_[other] + spans_[other].bytes);
      }
    }
    std::sort(taken_.begin(), taken_.end());
    int64_t offset = floor_;
    for (const auto& [begin, end] : taken_) {
      if (begin - offset >= spans_[i].bytes) {
        break;
      }
      offset = std::max(offset, end);
    }
    return offset;
  }

  const std::vector<Span>& spans_;
  const int64_t limit_;
  std::vector<int64_t> offsets_;
  std::vector<std::vector<size_t>> neighbours_; // that are needed at the same time
  std::vector<size_t> order_;
  std::vector<std::pair<int64_t, int64_t>> taken_; // offsets
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

} // namespace torch::cuda::lms::plan
