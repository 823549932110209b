#include <torch/csrc/cuda/lms/guard.h>

#include <torch/csrc/cuda/lms/counter.h>
#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/runtime.h>

#include <cxxabi.h>

#include <algorithm>
#include <string>
#include <vector>

namespace torch::cuda::lms {

namespace {

using Input = Guard::Input;
using Inputs = Guard::Inputs;

struct Pin {
  Block* block;
  c10::cuda::CUDAStream stream; // current for the block's device at the start
  bool collective;
};

struct Frame {
  Guard::Kind kind;
  size_t first_pin; // of those that it and what it calls made
};

// std::uncaught_exceptions(), which the libstdc++ of the oldest wheels' systems
// does not have. The layout is the Itanium C++ ABI's (2.2.2).
unsigned uncaught_exceptions() {
  struct Globals {
    void* caught;
    unsigned uncaught;
  };
  return reinterpret_cast<const Globals*>(abi::__cxa_get_globals())->uncaught;
}

// The last request of the outermost operator that failed.
struct Refusal {
  Pager* pager = nullptr; // null: there was none
  size_t bytes = 0;
  unsigned exceptions = 0; // in flight before
};

// What this thread is in the middle of.
struct Thread {
  std::vector<Frame> frames; // the operators begun
  size_t depth = 0; // how many of them are opaque
  bool computes = false; // the outermost one has inputs on a device
  const char* name = nullptr; // of the outermost one
  std::vector<Pin> pins; // undone at the end of the outermost opaque one, or of a composite
  std::string failure; // why an input could not be paged in
  Refusal refusal;
};

Thread& thread() {
  static thread_local Thread instance;
  return instance;
}

// Pins the storages and brings them to the device. Does not throw: what could
// not be brought throws when it is accessed, or at the next allocation.
void use(const Inputs& inputs, bool collective) {
  Runtime& runtime = Runtime::get();
  Thread& self = thread();
  const size_t first = self.pins.size();
  const Lock lock;
  c10::SmallVector<bool, 8> writes;
  // All are pinned before the first is brought, so that bringing one does not
  // page out another.
  for (const Input& input : inputs) {
    if (input.storage->device_type() != c10::DeviceType::CUDA) {
      continue; // a fake tensor's, or an argument that may be of any device
    }
    const c10::DeviceIndex device = input.storage->device().index();
    Pager& pager = runtime.pager(device);
    Block* const block = pager.adopt(*input.storage, runtime.settings.size);
    if (!block) {
      continue;
    }
    pager.pin(*block);
    block->collective = false;
    self.pins.push_back({block, c10::cuda::getCurrentCUDAStream(device), collective});
    writes.push_back(input.write);
  }
  for (size_t i = first; i < self.pins.size(); ++i) {
    Block& block = *self.pins[i].block;
    try {
      block.pager.bring(block, self.pins[i].stream);
      if (writes[i - first]) {
        block.pager.wrote(block);
        block.unfinished = false; // the program has waited for whoever read it
      }
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      // The wording that training loops look for, however it is raised.
      self.failure = message.find("out of memory") == std::string::npos
                         ? "CUDA out of memory. " + message
                         : message;
      block.pager.fail(block, self.failure);
    }
  }
}

void release_pins(Thread& self, size_t first) {
  if (self.pins.size() == first) {
    return;
  }
  struct Position {
    Timeline* timeline;
    uint64_t value;
  };
  c10::SmallVector<Position, 4> positions;
  const Lock lock;
  for (size_t i = first; i < self.pins.size(); ++i) {
    const Pin& pin = self.pins[i];
    Block& block = *pin.block;
    if (!block.dead) {
      Timeline& timeline = block.pager.timeline(pin.stream);
      const Position* position = nullptr;
      for (const Position& known : positions) {
        if (known.timeline == &timeline) {
          position = &known;
        }
      }
      if (!position) {
        positions.push_back({&timeline, timeline.advance()});
        position = &positions.back();
        // Without an event of its own, a page-out would wait for everything
        // that is issued until then; and a stream of the user's may be gone.
        try {
          if (!block.pager.capturing() &&
              (block.pager.under_pressure() || compat::is_external(pin.stream))) {
            timeline.mark();
          }
        } catch (const c10::Error&) {
          // The pins must go; a page-out will make the mark that it needs.
        }
      }
      block.pager.used(block, timeline, position->value);
      block.collective = pin.collective;
      block.unfinished |= pin.collective;
    }
    block.pager.unpin(block);
  }
  self.pins.erase(self.pins.begin() + static_cast<std::ptrdiff_t>(first), self.pins.end());
}

} // namespace

void Guard::begin(Kind kind, const char* name) {
  Thread& self = thread();
  self.frames.push_back({kind, self.pins.size()});
  if (kind == Kind::Opaque && self.depth++ == 0) {
    self.name = name;
    self.computes = false;
  }
}

void Guard::inputs(const Inputs& inputs, bool collective) {
  if (!inputs.empty()) {
    if (thread().depth == 1) {
      thread().computes = true;
    }
    use(inputs, collective);
  }
}

void Guard::compared(const Inputs& inputs) {
  const Lock lock;
  for (const Input& input : inputs) {
    if (Block* const block = Pager::block_of(*input.storage)) {
      block->pager.compared(*block, *input.storage);
    }
  }
}

bool Guard::wants_outputs() {
  const Thread& self = thread();
  return self.depth == 1 && self.computes && !self.frames.empty() &&
         self.frames.back().kind == Kind::Opaque;
}

bool Guard::fresh(const Input& output) {
  if (compat::nbytes(*output.storage) < Runtime::get().settings.size) {
    return false;
  }
  const Block* const block = Pager::block_of(*output.storage);
  return block && !block->owner;
}

void Guard::outputs(const Inputs& outputs) {
  use(outputs, false);
}

void Guard::end() {
  Thread& self = thread();
  if (self.frames.empty()) {
    return;
  }
  const Frame frame = self.frames.back();
  self.frames.pop_back();
  if (frame.kind == Kind::Transparent) {
    return;
  }
  if (frame.kind == Kind::Opaque && --self.depth == 0) {
    self.name = nullptr;
    self.refusal = {};
  }
  if (self.depth == 0) {
    self.failure.clear();
    release_pins(self, frame.first_pin);
  }
}

void Guard::keep_pinned(Pager& pager) {
  for (const Pin& pin : thread().pins) {
    Block& block = *pin.block;
    if (&block.pager == &pager && !block.dead) {
      pager.keep(block);
    }
  }
}

const char* Guard::current_operator() {
  return thread().name;
}

void Guard::refused(Pager& pager, size_t bytes) {
  if (thread().depth > 0) {
    thread().refusal = {&pager, bytes, uncaught_exceptions()};
  }
}

void Guard::check_refused() {
  Thread& self = thread();
  const Refusal refusal = self.refusal;
  if (C10_UNLIKELY(refusal.pager != nullptr) && uncaught_exceptions() == refusal.exceptions) {
    self.refusal = {}; // nothing is thrown
    refusal.pager->went_on(refusal.bytes, self.name);
  }
}

void Guard::check_failed() {
  Thread& self = thread();
  if (C10_UNLIKELY(!self.failure.empty())) {
    const std::string failure = self.failure;
    self.failure.clear();
    TORCH_CHECK_WITH(OutOfMemoryError, false, failure);
  }
}

void Guard::begin_region(c10::StorageImpl* const* storages, size_t count) {
  begin(Kind::Opaque, "a compiled region");
  Inputs inputs;
  for (size_t i = 0; i < count; ++i) {
    inputs.push_back({storages[i], true});
  }
  use(inputs, false);
  if (!thread().failure.empty()) {
    const std::string failure = thread().failure;
    end();
    TORCH_CHECK_WITH(OutOfMemoryError, false, failure);
  }
}

void Guard::end_region() {
  end();
}

void Guard::address_taken(c10::StorageImpl& storage, bool write) {
  const Thread& self = thread();
  if (self.depth > 0 || (!self.frames.empty() && self.frames.back().kind == Kind::Composite)) {
    use({{&storage, write}}, false);
    check_failed();
    return;
  }
  const Lock lock;
  if (storage.device_type() != c10::DeviceType::CUDA) {
    return;
  }
  Pager& pager = Runtime::get().pager(storage.device().index());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(storage.device().index());
  // Of any size: the limit of what is managed may be lowered later.
  Block* const block = pager.adopt(storage, 1);
  if (!block) {
    return;
  }
  if (!Counter::in_operator()) {
    pager.export_address(*block, stream);
    return;
  }
  // Nothing is paged out before that has ended.
  pager.pin(*block);
  try {
    pager.bring(*block, stream);
    pager.wrote(*block);
  } catch (...) {
    pager.unpin(*block);
    throw;
  }
  pager.unpin(*block);
}

bool Guard::has_pinned(const void* block, bool write) {
  const auto& pins = thread().pins;
  return std::any_of(pins.begin(), pins.end(), [&](const Pin& pin) {
    return pin.block == block && (pin.block->dirty || !write);
  });
}

} // namespace torch::cuda::lms
