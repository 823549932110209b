#include "substitutes.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <map>
#include <optional>

#include "release.h"

namespace simops {
namespace {

using at::Tensor;
using torch::jit::pop;
using torch::jit::push;
using torch::jit::Stack;

Tensor plus(const Tensor& gates, const Optional<Tensor>& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor or_zeros(const Optional<Tensor>& gradient, const Tensor& like) {
  return gradient.has_value() && gradient->defined() ? *gradient : at::zeros_like(like);
}

Tensor sum_over_batch(const Tensor& gates, bool wanted) {
  return wanted ? gates.sum(0) : Tensor();
}

// The derivatives of the two functions of a gate, from their values.
Tensor sigmoid_slope(const Tensor& value) {
  return value * (1 - value);
}
Tensor tanh_slope(const Tensor& value) {
  return 1 - value * value;
}

// (input_gates, hidden_gates, cx, input_bias, hidden_bias) -> (hy, cy, activated gates)
void lstm_cell(Stack& stack) {
  Tensor input_gates, hidden_gates, cx;
  Optional<Tensor> input_bias, hidden_bias;
  pop(stack, input_gates, hidden_gates, cx, input_bias, hidden_bias);
  const auto gates = (plus(input_gates, input_bias) + plus(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid();
  const Tensor forget = gates[1].sigmoid();
  const Tensor cell = gates[2].tanh();
  const Tensor out = gates[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  push(stack, out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1));
}

// (grad_hy, grad_cy, cx, cy, activated gates, has_bias) -> (grad_gates, grad_cx, grad_bias)
void lstm_cell_backward(Stack& stack) {
  Optional<Tensor> maybe_grad_hy, maybe_grad_cy;
  Tensor cx, cy, workspace;
  bool has_bias = false;
  pop(stack, maybe_grad_hy, maybe_grad_cy, cx, cy, workspace, has_bias);
  const auto gates = workspace.chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor grad_hy = or_zeros(maybe_grad_hy, cy);
  const Tensor tanh_cy = cy.tanh();
  const Tensor grad_cy = or_zeros(maybe_grad_cy, cy) + grad_hy * out * tanh_slope(tanh_cy);
  const Tensor grad_gates = at::cat(
      {grad_cy * cell * sigmoid_slope(in),
       grad_cy * cx * sigmoid_slope(forget),
       grad_cy * in * tanh_slope(cell),
       grad_hy * tanh_cy * sigmoid_slope(out)},
      1);
  push(stack, grad_gates, grad_cy * forget, sum_over_batch(grad_gates, has_bias));
}

// (input_gates, hidden_gates, hx, input_bias, hidden_bias) -> (hy, what the backward needs)
void gru_cell(Stack& stack) {
  Tensor input_gates, hidden_gates, hx;
  Optional<Tensor> input_bias, hidden_bias;
  pop(stack, input_gates, hidden_gates, hx, input_bias, hidden_bias);
  const auto from_input = plus(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
  const Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
  const Tensor fresh = (from_input[2] + reset * from_hidden[2]).tanh();
  push(
      stack, fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, from_hidden[2]}, 1));
}

// (grad_hy, workspace, has_bias) -> gradients of the input gates, hidden gates, hx, and both biases
void gru_cell_backward(Stack& stack) {
  Tensor grad_hy, workspace;
  bool has_bias = false;
  pop(stack, grad_hy, workspace, has_bias);
  const auto saved = workspace.chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3],
               &hidden = saved[4];
  const Tensor grad_fresh = grad_hy * (1 - update) * tanh_slope(fresh);
  const Tensor grad_reset = grad_fresh * hidden * sigmoid_slope(reset);
  const Tensor grad_update = grad_hy * (hx - fresh) * sigmoid_slope(update);
  const Tensor grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  push(
      stack,
      grad_input,
      grad_hidden,
      grad_hy * update,
      sum_over_batch(grad_input, has_bias),
      sum_over_batch(grad_hidden, has_bias));
}

// (grad_out, input, normalized_shape, rstd, weight, output_mask) -> (grad_input, grad_weight)
void rms_norm_backward(Stack& stack) {
  Tensor grad_out, input, rstd;
  std::vector<int64_t> normalized_shape;
  Optional<Tensor> weight;
  c10::List<bool> mask;
  pop(stack, grad_out, input, normalized_shape, rstd, weight, mask);
  const int64_t leading = input.dim() - static_cast<int64_t>(normalized_shape.size());
  std::vector<int64_t> batch_dims, normalized_dims;
  for (int64_t i = 0; i < input.dim(); ++i)
    (i < leading ? batch_dims : normalized_dims).push_back(i);
  const bool weighted = weight.has_value() && weight->defined();
  const Tensor scale = rstd.to(at::kFloat);
  const Tensor unit = input.to(at::kFloat) * scale;
  const Tensor gradient = grad_out.to(at::kFloat);
  const Tensor weighted_gradient = weighted ? gradient * *weight : gradient;
  Tensor grad_input, grad_weight;
  if (mask[0]) {
    const Tensor along = (weighted_gradient * unit).mean(normalized_dims, /*keepdim=*/true);
    grad_input = ((weighted_gradient - unit * along) * scale).to(input.scalar_type());
  }
  if (mask[1] && weighted) {
    const Tensor product = gradient * unit;
    grad_weight = (leading > 0 ? product.sum(batch_dims) : product).to(weight->scalar_type());
  }
  push(stack, grad_input, grad_weight);
}

} // namespace

Substitute find_substitute(const std::string& name) {
  static const std::map<std::string, Substitute> substitutes = {
      {"aten::_fused_rms_norm_backward", rms_norm_backward},
      {"aten::_thnn_fused_gru_cell", gru_cell},
      {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
      {"aten::_thnn_fused_lstm_cell", lstm_cell},
      {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
  };
  const auto it = substitutes.find(name);
  return it == substitutes.end() ? nullptr : it->second;
}

} // namespace simops
