#include <torch/csrc/cuda/lms/guard/operator.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace torch::cuda::lms {

namespace {

// The range of a whole autograd node: its hooks, its function, and the accumulation of its results.
constexpr const char* kNode = "autograd::engine::evaluate_function";
constexpr const char* kCollective = "c10d::";

bool starts_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Reads only sizes, strides and options of its tensors, and makes at most a new tensor.
bool metadata_only(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::empty_like",
      "aten::new_empty",
      "aten::new_empty_strided",
      "aten::new_full",
      "aten::new_ones",
      "aten::new_zeros",
      "aten::zeros_like",
      "aten::ones_like",
      "aten::full_like",
      "aten::rand_like",
      "aten::randn_like",
      "aten::randint_like",
      "aten::is_same_size",
      "aten::is_set_to",
      "aten::detach_",
      "aten::requires_grad_",
      "aten::retain_grad",
      "aten::output_nr",
      "aten::_version",
      "aten::is_leaf",
      "aten::sym_size",
      "aten::sym_stride",
      "aten::sym_numel",
      "aten::sym_storage_offset",
      "aten::_has_compatible_shallow_copy_type",
  };
  return names.count(name) > 0;
}

// Arguments that operators write although their schemas do not mark them: running statistics, and
// what libraries keep for the backward pass. If there are more, the sweep over PyTorch's OpInfo
// database with verify_clean finds them.
bool written_unmarked(const std::string& argument) {
  return starts_with(argument.c_str(), "running_") || starts_with(argument.c_str(), "reserve");
}

// May write any of its arguments.
bool writes_any(const std::string& name) {
  return contains(name, "rrelu") || contains(name, "rnn") || contains(name, "_fake_quant") ||
         contains(name, "_fused_moving_avg");
}

// These compare the addresses of their weights with those of a buffer, to see whether cuDNN can use
// it.
bool compares_addresses(const std::string& name) {
  return name == "aten::lstm" || name == "aten::gru" || name == "aten::rnn_tanh" ||
         name == "aten::rnn_relu";
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    const auto* const alias = result.alias_info();
    if (!alias || alias->isWrite()) {
      return false;
    }
  }
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() && argument.alias_info()->isWrite()) {
      return false;
    }
  }
  return !schema.returns().empty();
}

Operator describe(const c10::FunctionSchema& schema) {
  Operator op;
  op.lasting_name = true;
  const std::string& name = schema.name();
  const auto handle = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  // A composite operator has to work for any backend, so it only calls other operators. If it also
  // has a CUDA kernel, it is not composite on CUDA. This is only true in aten: elsewhere, a kernel
  // without a dispatch key is registered as composite, and may do anything.
  const bool composite =
      handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  if (composite && compares_addresses(name)) {
    op.kind = Operator::Kind::Composite;
  } else if (composite || metadata_only(name) || is_view(schema)) {
    op.kind = Operator::Kind::Transparent;
  }
  if (!writes_any(name)) {
    for (const auto& argument : schema.arguments()) {
      const auto* const alias = argument.alias_info();
      op.writes.push_back((alias && alias->isWrite()) || written_unmarked(argument.name()));
    }
  }
  return op;
}

Operator make(Operator::Kind kind, bool collective, bool range) {
  Operator op;
  op.kind = kind;
  op.collective = collective;
  op.range = range;
  return op;
}

} // namespace

const Operator& Operator::of(const at::RecordFunction& function) {
  static const Operator opaque; // any argument may be written
  static const Operator collective = make(Kind::Opaque, true, false);
  static const Operator range = make(Kind::Transparent, false, true);
  static const Operator node = make(Kind::Node, false, true);
  const char* const name = function.name();
  if (starts_with(name, kCollective)) {
    return collective;
  }
  // The ranges of the profiler have no namespace in their names; operators do.
  if (!std::strstr(name, "::")) {
    return range;
  }
  if (starts_with(name, kNode)) {
    return node;
  }
  if (!starts_with(name, "aten::")) {
    return opaque; // its schema may be wrong
  }
  // The name belongs to the schema of one overload. Schemas of aten are never deregistered, so the
  // address of the name identifies the overload.
  thread_local std::unordered_map<const char*, std::unique_ptr<Operator>> cache;
  try {
    const auto found = cache.find(name);
    if (found != cache.end()) {
      return *found->second;
    }
    const auto schema = function.operator_schema();
    if (!schema) {
      return opaque; // somebody's range that only has such a name
    }
    return *cache.emplace(name, std::make_unique<Operator>(describe(*schema))).first->second;
  } catch (const std::exception&) {
    return opaque;
  }
}

bool Operator::is_distributed(const char* name) {
  return starts_with(name, kCollective) || starts_with(name, "torch::distributed::");
}

} // namespace torch::cuda::lms
