// Tells the guard about operators and autograd nodes, with global RecordFunction callbacks. Global
// ones are called in the threads of autograd, too.

#include <torch/csrc/cuda/lms/guard/guard.h>

#include <torch/csrc/cuda/lms/compat/profiler.h>
#include <torch/csrc/cuda/lms/device/runtime.h>
#include <torch/csrc/cuda/lms/guard/data.h>
#include <torch/csrc/cuda/lms/guard/node.h>
#include <torch/csrc/cuda/lms/guard/operator.h>

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace torch::cuda::lms {

namespace {

using Inputs = Guard::Inputs;

void collect(const at::Tensor& tensor, bool write, Inputs& inputs) {
  if (!tensor.defined()) {
    return;
  }
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  // Tensor::device() cannot be used, because a subclass may implement it in Python. The storage's
  // device cannot be used either, because reading it requires the mutex.
  if (const c10::Storage& storage = impl->unsafe_storage()) {
    if (impl->key_set().has_backend(c10::BackendComponent::CUDABit)) {
      inputs.push_back({storage.unsafeGetStorageImpl(), write, kind_of(*impl)});
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
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      collect(entry.key(), write, inputs);
      collect(entry.value(), write, inputs);
    }
  } else if (value.isObject()) {
    // An object of a TorchScript class. Its methods can write the attributes, whatever the schema
    // says.
    for (const c10::IValue& slot : value.toObjectRef().slots()) {
      collect(slot, true, inputs);
    }
  }
}

// LMS manages what the outermost operator made, because it may be kept for a long time without
// being used. There are two exceptions. If the operator has no inputs, or copies only their shape,
// the new memory is about to be filled, perhaps without being seen. And if an inner operator made
// it, the outer one may have its address.
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
  Guard::begin(op.kind, function.name(), op.lasting_name);
  if (op.kind == Operator::Kind::Node) {
    Guard::node_arrives(Node::current());
    return nullptr;
  }
  const bool view = op.kind == Operator::Kind::Transparent && !op.range;
  const bool of_node = view && Guard::in_node();
  if (op.range || (view && !of_node && !compat::profiler_looks())) {
    return nullptr;
  }
  Inputs inputs;
  const auto arguments = function.inputs();
  for (size_t i = 0; i < arguments.size(); ++i) {
    collect(arguments[i], op.may_write(i), inputs);
  }
  if (of_node) {
    Guard::node_inputs(inputs);
  } else {
    Guard::inputs(inputs, op.collective);
  }
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
  try {
    if (Guard::ends_node()) {
      Guard::node_leaves(Node::current());
    }
    Guard::check_refused();
    if (Guard::wants_outputs()) {
      manage_outputs(function);
    }
  } catch (...) { // PyTorch says what it was, and goes on
    Guard::end();
    throw;
  }
  Guard::end();
}

// The function of an autograd node, inside the range of the whole node.
std::unique_ptr<at::ObserverContext> on_node_start(const at::RecordFunction& function) {
  Inputs inputs;
  for (const c10::IValue& gradient : function.inputs()) {
    collect(gradient, false, inputs);
  }
  Guard::node_inputs(inputs);
  return nullptr;
}

void on_node_end(const at::RecordFunction&, at::ObserverContext*) {
  if (Node::current().hooks) {
    Guard::node_hooks();
  }
}

std::vector<at::CallbackHandle> handles;

} // namespace

void Guard::install() {
  handles.push_back(
      at::addGlobalCallback(
          at::RecordFunctionCallback(on_start, on_end)
              .needsInputs(true)
              .needsOutputs(true)
              .scopes({at::RecordScope::FUNCTION})));
  handles.push_back(
      at::addGlobalCallback(
          at::RecordFunctionCallback(on_node_start, on_node_end)
              .needsInputs(true)
              .scopes({at::RecordScope::BACKWARD_FUNCTION})));
}

void Guard::remove() {
  for (const at::CallbackHandle handle : handles) {
    at::removeCallback(handle);
  }
  handles.clear();
}

} // namespace torch::cuda::lms
