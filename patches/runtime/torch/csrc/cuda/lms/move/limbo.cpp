#include <torch/csrc/cuda/lms/move/limbo.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/stream/timeline.h>

#include <c10/cuda/CUDAGuard.h>

#include <iterator>
#include <set>
#include <utility>

namespace torch::cuda::lms {

void Limbo::keep(
    at::DataPtr&& memory,
    size_t bytes,
    std::optional<c10::cuda::CUDAStream> home,
    EventRef done) {
  entries_.push_back({std::move(memory), bytes, home, std::move(done)});
  bytes_ += bytes;
}

void Limbo::collect() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool done = !entry->done || entry->done->done();
    if (!done && !(entry->home && lasting(*entry->home))) {
      ++entry;
      continue;
    }
    if (!done) {
      entry->done->block(entry->home->stream());
    }
    entry = give_back(entry);
  }
}

Limbo::Entries::iterator Limbo::give_back(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  Lock::drop_later(std::move(entry->memory));
  return entries_.erase(entry);
}

void Limbo::wait() {
  std::set<EventRef> events;
  for (const Entry& entry : entries_) {
    events.insert(entry.done);
  }
  {
    const Lock::Pause pause;
    const c10::cuda::CUDAGuard guard(device_);
    for (const EventRef& event : events) {
      if (event) {
        event->synchronize();
      }
    }
  }
  // Not collect(): a graph may be captured by now, and its stream must not wait for the others.
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry = events.count(entry->done) ? give_back(entry) : std::next(entry);
  }
}

} // namespace torch::cuda::lms
