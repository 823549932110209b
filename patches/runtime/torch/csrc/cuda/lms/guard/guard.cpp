#include <torch/csrc/cuda/lms/guard/guard.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/base/operation.h>
#include <torch/csrc/cuda/lms/device/runtime.h>
#include <torch/csrc/cuda/lms/guard/counter.h>
#include <torch/csrc/cuda/lms/guard/crossing.h>
#include <torch/csrc/cuda/lms/guard/node.h>

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch::cuda::lms {

namespace {

using Input = Guard::Input;
using Inputs = Guard::Inputs;

struct Pin {
  Block* block;
  c10::cuda::CUDAStream stream; // that was current on the block's device at the start
  bool collective;
  bool noted; // the stream is external, and the work issued on it so far has been recorded
};

struct Frame {
  Guard::Kind kind;
  const char* name;
  uint64_t number; // unique in the process
  size_t first_pin; // index of the first pin that this operator, or one inside it, made
  unsigned exceptions; // how many were in flight at its start
  bool grad_mode; // only used for nodes
  bool hooks; // only used for nodes: post hooks of others have begun
};

// Each thread numbers its operators. The threads start at different numbers.
uint64_t first_number() {
  static std::atomic<uint64_t> threads{0};
  return ++threads << 40;
}

// What this thread is doing at present.
struct Thread {
  std::vector<Frame> frames; // the operators that have begun
  size_t depth = 0; // how many of them are opaque
  size_t nodes = 0; // how many are autograd's nodes
  bool computes = false; // the outermost opaque one has inputs on a device
  uint64_t begun = first_number(); // number of the last operator that began
  // Released at the end of the operator that made them, or of the node around it.
  std::vector<Pin> pins;
};

Thread& thread() {
  static thread_local Thread instance;
  return instance;
}

// The innermost node; null if there is none, or if compiled code runs in it.
Frame* node_of(Thread& self) {
  if (self.nodes > 0) {
    for (size_t i = self.frames.size(); i-- > 0;) {
      if (self.frames[i].kind == Guard::Kind::Node) {
        return &self.frames[i];
      }
      if (self.frames[i].kind == Guard::Kind::Compiled) {
        return nullptr;
      }
    }
  }
  return nullptr;
}

Operation::Failure failure_of(const c10::Error& error) {
  std::string message = error.what_without_backtrace();
  const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
  if (memory && message.find("out of memory") == std::string::npos) {
    // Training loops look for this wording, whatever exception it is raised with.
    message = "CUDA out of memory. " + message;
  }
  return {std::move(message), memory};
}

// The inputs of one operator are usually on one device.
struct Place {
  c10::DeviceIndex device;
  Pager* pager;
  c10::cuda::CUDAStream stream; // the current one of the device
};

// Pins the storage's block, and returns it; null if LMS does not manage the storage. A storage that
// LMS cannot adopt is never moved. `place` is that of the input before, if there is one.
Block* pin(
    Runtime& runtime,
    Thread& self,
    const Input& input,
    bool collective,
    std::optional<Place>& place) {
  if (input.storage->device_type() != c10::DeviceType::CUDA) {
    return nullptr; // a fake tensor, or an argument that may be on any device
  }
  const c10::DeviceIndex device = input.storage->device().index();
  if (!place || place->device != device) {
    place = Place{device, &runtime.pager(device), c10::cuda::getCurrentCUDAStream(device)};
  }
  if (self.pins.size() == self.pins.capacity()) {
    self.pins.reserve(std::max<size_t>(2 * self.pins.size(), 16)); // push_back() must not throw
  }
  Pager& pager = *place->pager;
  Block* const block = pager.adopt(*input.storage, runtime.settings.size);
  if (block) {
    pager.registry.stay(*block, Reason::Operator);
    pager.registry.leave(*block, Reason::Collective);
    self.pins.push_back({block, place->stream, collective, false});
  }
  return block;
}

// The frame whose end releases the pins that this thread makes at present; null if there is none.
const Frame* unpinning_frame(Thread& self) {
  if (Guard::in_node()) {
    return node_of(self);
  }
  const auto outermost =
      std::find_if(self.frames.begin(), self.frames.end(), [](const Frame& frame) {
        return frame.kind == Guard::Kind::Opaque;
      });
  if (outermost != self.frames.end()) {
    return &*outermost;
  }
  const auto innermost =
      std::find_if(self.frames.rbegin(), self.frames.rend(), [](const Frame& frame) {
        return frame.kind == Guard::Kind::Composite || frame.kind == Guard::Kind::Compiled;
      });
  return innermost == self.frames.rend() ? nullptr : &*innermost;
}

void record(Block& block, c10::cuda::CUDAStream stream, bool write) {
  Pager& pager = block.pager;
  if (pager.recording()) {
    const Frame* const frame = unpinning_frame(thread());
    pager.uses(block, write, stream, frame ? frame->number : 0, frame ? frame->name : nullptr);
  }
}

// Pins the storages and brings them to the device. Does not throw: a storage that could not be
// paged in throws when it is accessed, or at the next allocation.
void use(const Inputs& inputs, bool collective) {
  Runtime& runtime = Runtime::get();
  Thread& self = thread();
  Operation& operation = Operation::current();
  const Lock lock;
  struct Pinned {
    Block* block;
    c10::cuda::CUDAStream stream;
    bool write;
    codec::Kind kind;
  };
  c10::SmallVector<Pinned, 8> pinned;
  std::optional<Place> place;
  // All of them are pinned before the first page-in, so that a page-in cannot page out another one.
  for (const Input& input : inputs) {
    try {
      if (Block* const block = pin(runtime, self, input, collective, place)) {
        pinned.push_back({block, self.pins.back().stream, input.write, input.kind});
      }
    } catch (const c10::Error& error) {
      operation.failure = failure_of(error);
    }
  }
  for (const Pinned& use : pinned) {
    Block& block = *use.block;
    record(block, use.stream, use.write);
    try {
      block.pager.room.bring(block, use.stream);
      block.pager.mover.uses(block, use.stream);
      block.user = operation.lasting_name;
      if (use.kind != codec::Kind::None) {
        block.origin.kind = use.kind;
      }
      if (use.write) {
        block.collective = 0; // the program has waited for the collectives that used it
        block.pager.mover.wrote(block, use.stream.stream());
      }
      if (use.write || !block.origin.writer) {
        block.origin.writer = operation.lasting_name;
      }
    } catch (const c10::Error& error) {
      operation.failure = failure_of(error);
      Pager::fail(block, operation.failure.message);
    }
  }
}

// Records that the work issued until now on the streams of these pins uses their blocks. With
// only_external, does so only for streams that the user may destroy before the pins are released.
// No such stream is used twice, because CUDA crashes instead of returning an error if it gets a
// stream that was destroyed.
void note_uses(Thread& self, size_t first, bool only_external) {
  struct Position {
    Timeline* timeline;
    uint64_t value;
    bool lost; // the stream was destroyed; its work until an earlier use is recorded
  };
  c10::SmallVector<Position, 4> positions;
  const Pin* last = nullptr; // the pin that `position` is of; most are on one stream
  Position* position = nullptr;
  for (size_t i = first; i < self.pins.size(); ++i) {
    Pin& pin = self.pins[i];
    const bool external = compat::is_external(pin.stream);
    if (pin.block->state.is(State::Freed) || pin.noted || (only_external && !external)) {
      continue;
    }
    pin.noted = only_external;
    if (!last || last->stream != pin.stream) {
      last = &pin;
      Pager& pager = pin.block->pager;
      Timeline& timeline = pager.mover.timeline(pin.stream);
      position = std::find_if(positions.begin(), positions.end(), [&](const Position& known) {
        return known.timeline == &timeline;
      });
      if (position == positions.end()) {
        positions.push_back({&timeline, timeline.advance(), false});
        position = positions.end() - 1;
        // Without an event here, a page-out would wait for everything that is issued until the
        // page-out. An external stream may be destroyed by then.
        try {
          if ((pager.mover.under_pressure() || external) && !pager.pools.capturing()) {
            timeline.mark();
          }
        } catch (const c10::Error&) {
          (void)cudaGetLastError();
          position->lost = external; // otherwise a page-out records the event that it needs
        }
      }
    }
    if (!position->lost) {
      Mover::used(*pin.block, *position->timeline, position->value);
    }
  }
}

void release_pins(Thread& self, size_t first, bool keep) {
  if (self.pins.size() == first) {
    return;
  }
  const Lock lock;
  note_uses(self, first, false);
  for (size_t i = first; i < self.pins.size(); ++i) {
    const Pin& pin = self.pins[i];
    Block& block = *pin.block;
    Pager& pager = block.pager;
    if (!block.state.is(State::Freed)) {
      if (pin.collective) {
        pager.registry.stay(block, Reason::Collective);
        pager.mover.collective(block);
      }
      // What could not be brought has no other copy than that on the host.
      if (keep && block.on_device() && !block.stays.has(Reason::Hook)) {
        pager.registry.stay(block, Reason::Hook);
        pager.mover.wrote(block);
      }
    }
    pager.registry.leave(block, Reason::Operator);
  }
  self.pins.erase(self.pins.begin() + static_cast<std::ptrdiff_t>(first), self.pins.end());
}

// Called when the outermost operator has failed, and not because a request to PyTorch did.
void failed(const Operation& operation) {
  if (Pager* const pager = Runtime::get().find(c10::cuda::current_device())) {
    pager->room.operator_failed(operation.name);
  }
}

} // namespace

void Guard::begin(Kind kind, const char* name, bool lasting) {
  Thread& self = thread();
  const bool node = kind == Kind::Node;
  self.frames.push_back(
      {kind,
       name,
       ++self.begun,
       self.pins.size(),
       Operation::exceptions(),
       node && compat::grad_mode(),
       false});
  self.nodes += node;
  if (kind == Kind::Opaque && self.depth++ == 0) {
    Operation::current().name = name;
    Operation::current().lasting_name = lasting ? name : nullptr;
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

bool Guard::in_node() {
  const Frame* const node = node_of(thread());
  return node && node->grad_mode == compat::grad_mode();
}

void Guard::node_inputs(const Inputs& inputs) {
  if (!inputs.empty() && in_node()) {
    use(inputs, false);
  }
}

void Guard::node_hooks() {
  Thread& self = thread();
  if (!self.frames.empty() && self.frames.back().kind == Kind::Node) {
    self.frames.back().hooks = true;
  }
}

bool Guard::ends_node() {
  const Thread& self = thread();
  return !self.frames.empty() && self.frames.back().kind == Kind::Node;
}

void Guard::node_arrives(const Node& node) {
  if (!Crossing::any()) {
    return;
  }
  Thread& self = thread();
  // Its destructor takes the mutex, so it must run after the unlock.
  std::shared_ptr<Crossing> crossing;
  const Lock lock;
  crossing = Crossing::find(node.pass);
  if (crossing) {
    for (Block* const block : crossing->arrived(node.id)) {
      self.pins.push_back({block, c10::cuda::getCurrentCUDAStream(block->device.index()), false});
    }
  }
}

void Guard::node_leaves(const Node& node) {
  Thread& self = thread();
  if (!ends_node() || node.consumers.empty()) {
    return;
  }
  const size_t first = self.frames.back().first_pin;
  if (self.pins.size() == first) {
    return;
  }
  std::shared_ptr<Crossing> crossing;
  bool made = false;
  {
    const Lock lock;
    crossing = Crossing::find(node.pass);
    if (!crossing) {
      crossing = Crossing::make(node.pass);
      made = true;
    }
    for (size_t i = first; i < self.pins.size(); ++i) {
      for (const void* const consumer : node.consumers) {
        if (!self.pins[i].block->state.is(State::Freed)) {
          crossing->leave_for(consumer, *self.pins[i].block);
        }
      }
    }
  }
  if (made) {
    Node::keep(crossing);
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
  const Block* const block = Registry::block_of(*output.storage);
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
  if (frame.kind == Kind::Opaque && --self.depth == 0) {
    Operation::current().name = nullptr;
    Operation::current().refusal = {};
  }
  if (frame.kind == Kind::Node) {
    --self.nodes;
  }
  if (self.depth > 0 || (frame.kind == Kind::Transparent && in_node())) {
    return;
  }
  if (frame.kind != Kind::Transparent) {
    Operation::current().failure = {};
  }
  if (frame.kind == Kind::Node || frame.kind == Kind::Compiled || !in_node()) {
    release_pins(self, frame.first_pin, frame.hooks);
  } else if (
      std::any_of(
          self.pins.begin() + static_cast<std::ptrdiff_t>(frame.first_pin),
          self.pins.end(),
          [](const Pin& pin) { return compat::is_external(pin.stream); })) {
    // The pins stay until the node ends, but their streams may be destroyed before.
    const Lock lock;
    note_uses(self, frame.first_pin, true);
  }
}

void Guard::keep_pinned(Pager& pager) {
  for (const Pin& pin : thread().pins) {
    Block& block = *pin.block;
    if (&block.pager == &pager && !block.state.is(State::Freed) && block.on_device() &&
        !block.stays.has(Reason::Graph)) {
      pager.registry.stay(block, Reason::Graph);
      pager.mover.wrote(block);
    }
  }
}

void Guard::check_refused() {
  Operation& operation = Operation::current();
  const Operation::Refusal refusal = operation.refusal;
  const unsigned exceptions = Operation::exceptions();
  if (C10_UNLIKELY(refusal.device >= 0)) {
    if (exceptions == refusal.exceptions) {
      operation.refusal = {}; // the operator did not throw
      if (Pager* const pager = Runtime::get().find(refusal.device)) {
        pager->room.went_on(refusal.bytes, operation.name);
      }
    }
    return; // otherwise PyTorch itself lacked memory, and its error says so
  }
  const Thread& self = thread();
  if (C10_UNLIKELY(exceptions > 0) && self.depth == 1 && !self.frames.empty() &&
      self.frames.back().kind == Kind::Opaque && exceptions > self.frames.back().exceptions) {
    failed(operation);
  }
}

void Guard::begin_region(const char* name, const Inputs& inputs) {
  begin(Kind::Opaque, name, /*lasting=*/true);
  use(inputs, false);
  const Operation::Failure failure = Operation::current().failure;
  if (!failure.message.empty()) {
    end();
    failure.raise();
  }
}

void Guard::end_region() {
  end();
}

void Guard::end_failed_region() {
  const Operation& operation = Operation::current();
  if (thread().depth == 1 && operation.refusal.device < 0) {
    failed(operation);
  }
  end();
}

bool Guard::begin_compiled() {
  Thread& self = thread();
  bool keep = false;
  if (self.depth == 0 && in_node()) {
    const Node node = Node::current();
    keep = node.hooks || !node.consumers.empty();
    if (!keep) {
      const size_t first = node_of(self)->first_pin;
      release_pins(self, first, false);
      // A checkpoint's node runs a forward pass: functions in it have begun after the node's pins.
      for (Frame& frame : self.frames) {
        frame.first_pin = std::min(frame.first_pin, first);
      }
    }
  }
  begin(Kind::Compiled, "compiled code", /*lasting=*/true);
  return keep;
}

void Guard::end_compiled(const Inputs& outputs) {
  end();
  node_inputs(outputs);
}

void Guard::address_taken(c10::StorageImpl& storage, bool write, bool lasting) {
  const Thread& self = thread();
  const bool within =
      self.depth > 0 || (!self.frames.empty() && self.frames.back().kind != Kind::Transparent);
  if (within && !lasting) {
    use({{&storage, write}}, false);
    Operation::current().check();
    return;
  }
  const Lock lock;
  if (storage.device_type() != c10::DeviceType::CUDA) {
    return;
  }
  Pager& pager = Runtime::get().pager(storage.device().index());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(storage.device().index());
  // Of any size, because the smallest managed size may be lowered later.
  Block* const block = pager.adopt(storage, 1);
  if (!block) {
    return;
  }
  if (Counter::in_operator() && !lasting) {
    pager.touch(*block, stream); // nothing is paged out before the operator ends
  } else if (!block->stays.has(Reason::Address) || block->hidden || block->arrived) {
    pager.keep(*block, Reason::Address, stream);
  }
}

bool Guard::has_pinned(const void* block, bool write) {
  const auto& pins = thread().pins;
  return std::any_of(pins.begin(), pins.end(), [&](const Pin& pin) {
    return pin.block == block && (pin.block->dirty || !write);
  });
}

} // namespace torch::cuda::lms
