#include <torch/csrc/cuda/lms/move/strays.h>

#include <algorithm>

namespace torch::cuda::lms {

void Strays::leave(const Block& block, bool captured) {
  for (const Use& use : block.uses) {
    Timeline& line = *use.timeline;
    if (use.recorded || (block.home && block.home->stream() == line.stream().stream())) {
      continue;
    }
    uint64_t position = use.position;
    const bool noted = !lasting(line.stream()) && line.marked(position); // by the operator's end
    if (block.stays.has(Reason::Operator) && !noted) {
      position = line.advance(); // what the running operator has issued until now
      if (!lasting(line.stream()) && !captured) {
        line.mark();
      }
    }
    const auto same = std::find_if(strays_.begin(), strays_.end(), [&](const Stray& stray) {
      return stray.home == block.home && stray.timeline == &line;
    });
    if (same == strays_.end()) {
      strays_.push_back({block.home, &line, position, false});
    } else if (position > same->position) {
      same->position = position;
      same->in_waits = false;
    }
  }
}

// An event that is complete when the stray's work is. Null if the user has destroyed its stream
// before an event was recorded; the host has waited for the device then.
EventRef Strays::Stray::end() const {
  try {
    return timeline->after(position);
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
    (void)cudaDeviceSynchronize();
    return nullptr;
  }
}

void Strays::block(cudaStream_t home, cudaStream_t stream, bool page_ins) {
  for (auto stray = strays_.begin(); stray != strays_.end();) {
    if (stray->of_home(home) && !(page_ins && stray->in_waits)) {
      const EventRef end = stray->end();
      if (!end) {
        stray = strays_.erase(stray); // it has ended
        continue;
      }
      end->block(stream);
      stray->in_waits = stray->in_waits || page_ins;
    }
    ++stray;
  }
}

void Strays::collect(std::set<const Timeline*>& needed) {
  for (auto stray = strays_.begin(); stray != strays_.end();) {
    const EventRef end = stray->end();
    if (!end || end->done()) {
      stray = strays_.erase(stray);
    } else {
      needed.insert(stray->timeline);
      ++stray;
    }
  }
}

} // namespace torch::cuda::lms
