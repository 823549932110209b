#include <torch/csrc/cuda/lms/plan/trace.h>

#include <cmath>

namespace torch::cuda::lms::plan {

double Trace::seconds() const {
  double sum = 0;
  for (const Operator& op : operators) {
    sum += op.seconds;
  }
  return sum;
}

size_t Trace::events() const {
  size_t count = operators.size();
  for (const Operator& op : operators) {
    count += op.accesses.size();
  }
  return count;
}

std::string Trace::problem() const {
  if (unmanaged < 0) {
    return "the unmanaged bytes are negative";
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    const std::string name = "block " + std::to_string(i);
    if (block.bytes < 0) {
      return name + " has a negative size";
    }
    if (!block.persistent() && (block.freed < block.allocated || block.freed >= size())) {
      return name + " is not freed after its allocation in the same iteration";
    }
  }
  for (Place place = 0; place < size(); ++place) {
    const Operator& op = operators[place];
    const std::string name = "operator " + std::to_string(place);
    if (!std::isfinite(op.seconds) || op.seconds < 0) {
      return name + " has no valid duration";
    }
    for (const Access access : op.accesses) {
      if (access.block >= blocks.size()) {
        return name + " uses a block that is not there";
      }
      const Block& block = blocks[access.block];
      if (!block.persistent() && (place < block.allocated || place > block.freed)) {
        return name + " uses block " + std::to_string(access.block) + " outside of its life";
      }
    }
  }
  return "";
}

std::string Machine::problem() const {
  if (limit < 0) {
    return "the limit is negative";
  }
  // Infinite rates are right: not a number is what must not get through.
  if (!(out_rate > 0) || !(in_rate > 0)) {
    return "a link's rate is not positive";
  }
  if (!(out_pace > 0) || !(in_pace > 0)) {
    return "the pace of compressed transfers is not positive";
  }
  if (!std::isfinite(overhead) || overhead < 0) {
    return "the overhead of a transfer is not valid";
  }
  return "";
}

} // namespace torch::cuda::lms::plan
