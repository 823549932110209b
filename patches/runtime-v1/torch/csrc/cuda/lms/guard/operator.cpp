#include <torch/csrc/cuda/lms/guard/operator.h>

#include <cstring>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace torch::cuda::lms {

namespace {

bool contains(const char* text, const char* part) {
  return std::strstr(text, part) != nullptr;
}

// Operators that call so many others that the storages of all of them together may not fit. Each of
// the others is guarded itself. Recurrent ones compare the addresses of their weights, too.
bool composite(const char* name) {
  static const std::unordered_set<std::string> names = {
      "aten::lstm",
      "aten::gru",
      "aten::rnn_tanh",
      "aten::rnn_relu",
      "aten::einsum",
      "aten::chain_matmul",
  };
  return names.count(name) > 0;
}

// Writes running statistics, for example.
bool writes_unmarked(const char* name) {
  return contains(name, "batch_norm") || contains(name, "instance_norm") ||
         contains(name, "rrelu") || contains(name, "rnn") || contains(name, "fake_quant");
}

} // namespace

const Operator& Operator::of(const char* name) {
  thread_local std::unordered_map<const char*, Operator> cache;
  const auto found = cache.find(name);
  if (found != cache.end()) {
    return found->second;
  }
  Operator op;
  op.kind = composite(name) ? Guard::Kind::Composite : Guard::Kind::Opaque;
  op.writes_all = writes_unmarked(name);
  return cache.emplace(name, op).first->second;
}

} // namespace torch::cuda::lms
