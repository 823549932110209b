#include <torch/csrc/cuda/lms/guard.h>

#include <torch/csrc/cuda/lms/lock.h>
#include <torch/csrc/cuda/lms/operator.h>
#include <torch/csrc/cuda/lms/runtime.h>

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/util/SmallVector.h>

#include <cxxabi.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

namespace torch::cuda::lms {

namespace {

struct Input {
  c10::StorageImpl* storage;
  bool write;
};
using Inputs = c10::SmallVector<Input, 8>;

struct Pin {
  Block* block;
  c10::cuda::CUDAStream stream; // current for the block's device at the start
  bool collective;
};

struct Frame {
  Operator::Kind kind;
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

void collect(const at::Tensor& tensor, bool write, Inputs& inputs) {
  if (!tensor.defined()) {
    return;
  }
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  // Not Tensor::device(): a subclass may answer that in Python. Not the storage's
  // either: that is read with the mutex held.
  if (const c10::Storage& storage = impl->unsafe_storage()) {
    if (impl->key_set().has_backend(c10::BackendComponent::CUDABit)) {
      inputs.push_back({storage.unsafeGetStorageImpl(), write});
    }
  } else if (const auto* const sparse = dynamic_cast<const at::SparseTensorImpl*>(impl)) {
    collect(sparse->indices(), write, inputs);
    collect(sparse->values(), write, inputs);
  } else if (const auto* const rows = dynamic_cast<const at::SparseCsrTensorImpl*>(impl)) {
    collect(rows->compressed_indices(), write, inputs);
    collect(rows->plain_indices(), write, inputs);
    collect(rows->values(), write, inputs);
  }
}

void collect(const c10::IValue& value, bool write, Inputs& inputs) {
  if (value.isTensor()) {
    collect(value.toTensor(), write, inputs);
  } else if (value.isStorage()) {
    // set_() looks at its address.
    inputs.push_back({value.toStorage().unsafeGetStorageImpl(), write});
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      collect(element, write, inputs);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      collect(element, write, inputs);
    }
  }
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

void may_be_compared(const Inputs& inputs) {
  const Lock lock;
  for (const Input& input : inputs) {
    if (Block* const block = Pager::block_of(*input.storage)) {
      block->pager.compared(*block, *input.storage);
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

// Whether a storage that LMS will manage was made just now. Without the mutex:
// nobody else has seen it. The others that are large enough are inputs, and have
// their blocks; smaller ones may get theirs from another thread at this moment.
bool fresh(const Input& output) {
  if (output.storage->nbytes() < Runtime::get().settings.size) {
    return false;
  }
  const Block* const block = Pager::block_of(*output.storage);
  return block && !block->owner;
}

// What the outermost operator made comes under management: it may be kept and
// not be read for long. Not what has no inputs or copies only their shape: new
// memory is about to be filled, perhaps where no operator shows it. And not what
// an inner operator made: the outer one may have its address.
void manage_outputs(const at::RecordFunction& function) {
  Inputs outputs;
  for (const c10::IValue& output : function.outputs()) {
    collect(output, false, outputs);
  }
  if (std::any_of(outputs.begin(), outputs.end(), fresh)) {
    use(outputs, false);
  }
}

void begin(Operator::Kind kind, const char* name) {
  Thread& self = thread();
  self.frames.push_back({kind, self.pins.size()});
  if (kind == Operator::Kind::Opaque && self.depth++ == 0) {
    self.name = name;
    self.computes = false;
  }
}

void end() {
  Thread& self = thread();
  if (self.frames.empty()) {
    return;
  }
  const Frame frame = self.frames.back();
  self.frames.pop_back();
  if (frame.kind == Operator::Kind::Transparent) {
    return;
  }
  if (frame.kind == Operator::Kind::Opaque && --self.depth == 0) {
    self.name = nullptr;
    self.refusal = {};
  }
  if (self.depth == 0) {
    self.failure.clear();
    release_pins(self, frame.first_pin);
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  const Operator& op = Operator::of(function);
  begin(op.kind, function.name());
  std::atomic<bool>& distributed = Runtime::get().settings.distributed;
  if (op.collective) {
    distributed = true;
  }
  const bool compared = op.reducer || (op.detach && distributed);
  if (op.kind == Operator::Kind::Transparent && !compared) {
    return nullptr;
  }
  Inputs inputs;
  const auto arguments = function.inputs();
  for (size_t i = 0; i < arguments.size(); ++i) {
    collect(arguments[i], op.may_write(i), inputs);
  }
  if (compared) {
    may_be_compared(inputs);
  }
  if (!inputs.empty() && op.kind != Operator::Kind::Transparent) {
    if (thread().depth == 1) {
      thread().computes = true;
    }
    use(inputs, op.collective);
  }
  return nullptr;
}

// Whether the operator ends although a request of it failed: nothing is thrown.
void check_refusal(Thread& self) {
  const Refusal refusal = self.refusal;
  if (C10_UNLIKELY(refusal.pager != nullptr) && uncaught_exceptions() == refusal.exceptions) {
    self.refusal = {};
    refusal.pager->went_on(refusal.bytes, self.name);
  }
}

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  Thread& self = thread();
  check_refusal(self);
  if (self.depth == 1 && self.computes && !self.frames.empty() &&
      self.frames.back().kind == Operator::Kind::Opaque) {
    manage_outputs(function);
  }
  end();
}

std::mutex handle_mutex;
at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

} // namespace

void Guard::install() {
  const std::lock_guard<std::mutex> lock(handle_mutex);
  if (handle == at::INVALID_CALLBACK_HANDLE) {
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(on_start, on_end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
}

void Guard::remove() {
  const std::lock_guard<std::mutex> lock(handle_mutex);
  if (handle != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
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

void Guard::check_failed() {
  Thread& self = thread();
  if (C10_UNLIKELY(!self.failure.empty())) {
    const std::string failure = self.failure;
    self.failure.clear();
    TORCH_CHECK_WITH(OutOfMemoryError, false, failure);
  }
}

void Guard::begin_region(c10::StorageImpl* const* storages, size_t count) {
  begin(Operator::Kind::Opaque, "a compiled region");
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

void Guard::address_taken(c10::StorageImpl& storage) {
  if (thread().depth > 0) {
    use({{&storage, true}}, false);
    check_failed();
    return;
  }
  const Lock lock;
  if (storage.device_type() != c10::DeviceType::CUDA) {
    return;
  }
  Pager& pager = Runtime::get().pager(storage.device().index());
  // Of any size: the limit of what is managed may be lowered later.
  if (Block* const block = pager.adopt(storage, 1)) {
    pager.export_address(*block, c10::cuda::getCurrentCUDAStream(storage.device().index()));
  }
}

} // namespace torch::cuda::lms
