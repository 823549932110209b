#include "operator.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <optional>

#include "aliases.h"
#include "launch.h"
#include "random.h"
#include "release.h"
#include "substitutes.h"

namespace simops {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

std::atomic<long> g_operators_run{0};

bool is_cuda(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Applies `change` to every tensor in the value: a tensor, a list of tensors, or of optional ones.
template <class Change>
IValue with_tensors(const IValue& value, const Change& change) {
  if (value.isTensor())
    return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector())
      list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<Optional<Tensor>> list;
    for (Optional<Tensor> tensor : value.toOptionalTensorList()) {
      list.push_back(tensor.has_value() ? Optional<Tensor>(change(*tensor)) : kNone);
    }
    return list;
  }
  return value;
}

// One call of one operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        first_argument_(stack->size() - schema_.arguments().size()),
        arguments_(stack->begin() + static_cast<std::ptrdiff_t>(first_argument_), stack->end()) {}

  void run();

 private:
  IValue& argument(size_t i) {
    return (*stack_)[first_argument_ + i];
  }
  c10::Device device() const;
  void check_memory(Launch& launch);
  void move_arguments();
  void run_on_cpu();
  void resize_outputs(Launch& launch);
  void move_results(Launch& launch);
  Tensor result(const Tensor& cpu, Launch& launch);
  std::optional<size_t> returned_argument(const c10::Argument& returned) const;

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack* const stack_;
  const size_t first_argument_;
  const std::vector<IValue> arguments_; // as the caller passed them
  c10::Device device_ = at::kCPU; // where the operator runs
  Aliases aliases_;
  bool draws_from_argument_ = false;
  // CUDA tensors whose memory still has to be filled, with the CPU tensor to fill it from.
  std::vector<std::pair<Tensor, Tensor>> pending_;
};

// The device of the tensors, else the one that an argument names, else the current one.
c10::Device Call::device() const {
  const c10::Device current = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
  std::optional<c10::Device> named;
  std::optional<c10::Device> found;
  for (const IValue& value : arguments_) {
    if (value.isDevice() && value.toDevice().is_cuda())
      named = value.toDevice();
    with_tensors(value, [&](const Tensor& tensor) {
      if (!found && is_cuda(tensor))
        found = tensor.device();
      return tensor;
    });
  }
  if (named)
    return named->has_index() ? *named : current;
  return found.value_or(current);
}

void Call::check_memory(Launch& launch) {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const bool write = writes(schema_.arguments()[i]);
    with_tensors(arguments_[i], [&](const Tensor& tensor) {
      if (is_cuda(tensor) && tensor.layout() == at::kStrided)
        launch.use(tensor, write);
      return tensor;
    });
  }
}

void Call::move_arguments() {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const IValue& value = arguments_[i];
    if (value.isDevice() && value.toDevice().is_cuda()) {
      argument(i) = c10::Device(at::kCPU);
    } else if (value.isGenerator() && value.toGenerator().device().is_cuda()) {
      argument(i) = cpu_generator(value.toGenerator());
      draws_from_argument_ = true;
    } else {
      argument(i) = with_tensors(value, [&](const Tensor& tensor) {
        return is_cuda(tensor) ? aliases_.of(tensor) : tensor;
      });
    }
  }
}

void Call::run_on_cpu() {
  const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  if (const Substitute substitute = find_substitute(schema_.name())) {
    substitute(*stack_);
  } else if (!draws_from_argument_ && op_.hasTag(at::Tag::nondeterministic_seeded)) {
    const DefaultGeneratorGuard guard(device_);
    op_.redispatchBoxed(cpu, stack_);
  } else {
    op_.redispatchBoxed(cpu, stack_);
  }
}

void Call::resize_outputs(Launch& launch) {
  for (const auto& [cuda, alias] : aliases_.resized()) {
    if (alias.is_contiguous()) {
      cuda.resize_(alias.sizes());
    } else { // its elements may lie further apart than they would by its sizes
      cuda.resize_({static_cast<int64_t>(alias.storage().nbytes() / alias.itemsize())});
      cuda.as_strided_(alias.sizes(), alias.strides(), alias.storage_offset());
    }
    launch.moved(cuda);
    pending_.emplace_back(cuda, alias);
  }
}

Tensor Call::result(const Tensor& cpu, Launch& launch) {
  if (!cpu.defined() || !cpu.device().is_cpu())
    return cpu;
  if (Tensor original = aliases_.original(cpu); original.defined())
    return original;
  if (Tensor view = aliases_.original_view(cpu); view.defined())
    return view;
  if (cpu.layout() != at::kStrided)
    return cpu.to(device_);
  Tensor cuda = at::empty_strided(cpu.sizes(), cpu.strides(), cpu.options().device(device_));
  launch.use(cuda, true);
  pending_.emplace_back(cuda, cpu);
  return cuda;
}

// The argument that a return value is, when the schema says so: Tensor(a!).
std::optional<size_t> Call::returned_argument(const c10::Argument& returned) const {
  if (!writes(returned))
    return std::nullopt;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const c10::AliasInfo* alias = schema_.arguments()[i].alias_info();
    if (alias != nullptr && *alias == *returned.alias_info())
      return i;
  }
  return std::nullopt;
}

void Call::move_results(Launch& launch) {
  const auto& returns = schema_.returns();
  const size_t first = stack_->size() - returns.size();
  for (size_t i = 0; i < returns.size(); ++i) {
    IValue& value = (*stack_)[first + i];
    if (const std::optional<size_t> same = returned_argument(returns[i])) {
      value = arguments_[*same];
    } else {
      value = with_tensors(value, [&](const Tensor& tensor) { return result(tensor, launch); });
    }
  }
}

void Call::run() {
  ++g_operators_run;
  follow_allocator();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  device_ = device();
  const c10::OptionalDeviceGuard device_guard(device_);
  Launch launch(schema_.name(), device_);
  check_memory(launch);
  move_arguments();
  run_on_cpu();
  // As on a GPU, all outputs have their memory before anything is written to it.
  resize_outputs(launch);
  move_results(launch);
  launch.record();
  for (const auto& [cuda, cpu] : pending_) {
    if (cpu.numel() != 0)
      Aliases().of(cuda).copy_(cpu);
  }
}

// Whether the bytes of one tensor, copied in order, give the other.
bool same_layout(const Tensor& to, const Tensor& from) {
  return to.dtype() == from.dtype() && to.sizes() == from.sizes() &&
         to.strides() == from.strides() && to.is_non_overlapping_and_dense() &&
         to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

} // namespace

void run_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Call(op, stack).run();
}

void run_copy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  follow_allocator();
  const size_t arguments = op.schema().arguments().size();
  const Tensor to = torch::jit::peek(*stack, 0, arguments).toTensor();
  const Tensor from = torch::jit::peek(*stack, 1, arguments).toTensor();
  if (to.is_cuda() && from.is_cuda() && !same_layout(to, from)) {
    run_operator(op, keys, stack);
  } else {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CompositeExplicitAutograd), stack);
  }
}

long operators_run() {
  return g_operators_run;
}

} // namespace simops
