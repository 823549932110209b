#pragma once

#include <torch/csrc/cuda/lms/stream/timeline.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace torch::cuda::lms {

// The timelines of the streams on which one device's blocks are used.
class Timelines {
 public:
  explicit Timelines(EventPool& events) : events_(events) {}
  Timelines(const Timelines&) = delete;
  Timelines& operator=(const Timelines&) = delete;

  // The stream's timeline, which exists until it is forgotten.
  Timeline& of(c10::cuda::CUDAStream stream) {
    auto& timeline = timelines_[stream.stream()];
    if (!timeline) {
      timeline = std::make_unique<Timeline>(stream, events_);
    }
    return *timeline;
  }

  // The streams that can be used at any time.
  std::vector<c10::cuda::CUDAStream> streams() const {
    std::vector<c10::cuda::CUDAStream> found;
    for (const auto& entry : timelines_) {
      if (lasting(entry.second->stream())) {
        found.push_back(entry.second->stream());
      }
    }
    return found;
  }

  // Whether there are so many that those which nothing needs should be forgotten.
  bool too_many() const {
    return timelines_.size() > kMost;
  }
  void forget_all_but(const std::set<const Timeline*>& needed) {
    for (auto entry = timelines_.begin(); entry != timelines_.end();) {
      entry = needed.count(entry->second.get()) ? std::next(entry) : timelines_.erase(entry);
    }
  }

 private:
  static constexpr size_t kMost = 64;

  EventPool& events_;
  std::map<cudaStream_t, std::unique_ptr<Timeline>> timelines_;
};

} // namespace torch::cuda::lms
