#include <torch/csrc/cuda/lms/guard/node.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

namespace torch::cuda::lms {

Node Node::current() {
  Node found;
  const auto node = torch::autograd::get_current_node();
  if (!node) {
    return found;
  }
  found.id = node.get();
  found.pass = torch::autograd::get_current_graph_task_id();
  found.hooks = !node->post_hooks().empty();
  const auto stream = node->stream();
  for (const auto& edge : node->next_edges()) {
    if (edge.is_valid()) {
      const auto other = edge.function->stream();
      if (stream && other && *stream != *other) {
        found.consumers.push_back(edge.function.get());
      }
    }
  }
  return found;
}

void Node::keep(std::shared_ptr<void> token) {
  // The engine keeps the callback until the end of the backward pass.
  torch::autograd::Engine::get_default_engine().queue_callback([token = std::move(token)] {});
}

} // namespace torch::cuda::lms
