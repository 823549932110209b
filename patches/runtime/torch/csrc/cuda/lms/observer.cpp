// Tells the guard of operators: a global RecordFunction callback, so it sees those
// of autograd's threads, too.

#include <torch/csrc/cuda/lms/guard.h>

#include <torch/csrc/cuda/lms/operator.h>
#include <torch/csrc/cuda/lms/runtime.h>

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>

namespace torch::cuda::lms {

namespace {

using Inputs = Guard::Inputs;

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

// What the outermost operator made comes under management: it may be kept and
// not be read for long. Not what has no inputs or copies only their shape: new
// memory is about to be filled, perhaps where no operator shows it. And not what
// an inner operator made: the outer one may have its address.
void manage_outputs(const at::RecordFunction& function) {
  Inputs outputs;
  for (const c10::IValue& output : function.outputs()) {
    collect(output, false, outputs);
  }
  if (std::any_of(outputs.begin(), outputs.end(), Guard::fresh)) {
    Guard::outputs(outputs);
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  const Operator& op = Operator::of(function);
  Guard::begin(op.kind, function.name());
  Published<bool>& distributed = Runtime::get().settings.distributed;
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
    Guard::compared(inputs);
  }
  if (op.kind != Operator::Kind::Transparent) {
    Guard::inputs(inputs, op.collective);
  }
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  Guard::check_refused();
  if (Guard::wants_outputs()) {
    manage_outputs(function);
  }
  Guard::end();
}

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

} // namespace

void Guard::install() {
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(on_start, on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

void Guard::remove() {
  if (handle != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

} // namespace torch::cuda::lms
