#include <torch/csrc/cuda/lms/move/slots.h>

#include <torch/csrc/cuda/lms/kernel/packer.h>

#include <algorithm>
#include <utility>

namespace torch::cuda::lms {

namespace {

// If less than this share of a buffer is empty, it stays as large as was expected: blocks like this
// one get buffers of the same size, for which the gap is of use when it is free.
constexpr size_t kEmpty = 16; // one of so many bytes

size_t pages(size_t bytes) {
  return (bytes + codec::kAlign - 1) / codec::kAlign * codec::kAlign;
}

} // namespace

Demand Slots::demand(size_t most, size_t expected) {
  const size_t bytes = pages(most);
  return {bytes, bytes - std::min(bytes, pages(expected)), 0};
}

void Slots::taken(Block& block, size_t spare) {
  block.host.spare = spare;
  used_.add(static_cast<int64_t>(block.host.buffer.size()));
  tensors_.add(static_cast<int64_t>(block.size));
}

bool Slots::shrunk(const Block& block) {
  return block.host.packed != codec::Kind::None &&
         block.host.buffer.size() < codec::buffer_bytes(block.size);
}

bool Slots::extend(Block& block) {
  HostBuffer& buffer = block.host.buffer;
  const size_t size = buffer.size();
  const size_t spare = pages(codec::buffer_bytes(block.size)) - size;
  if (!arena_.extend({spare, spare, coming_}, buffer)) {
    return false;
  }
  used_.add(static_cast<int64_t>(buffer.size() - size));
  block.host.spare = spare;
  return true;
}

void Slots::written(Block& block, EventRef done) {
  if (block.host.packed == codec::Kind::None) {
    return;
  }
  const auto known = places_.find(&block);
  if (known != places_.end()) {
    forget(known->second);
  }
  coming_ += block.host.spare;
  writing_.push_back({&block, std::move(done), block.host.spare});
  places_.emplace(&block, std::prev(writing_.end()));
}

void Slots::dropped(Block& block) {
  if (block.host.packed == codec::Kind::None) {
    return;
  }
  const auto known = places_.find(&block);
  if (known != places_.end()) {
    forget(known->second);
  }
  used_.add(-static_cast<int64_t>(block.host.buffer.size()));
  tensors_.add(-static_cast<int64_t>(block.size));
}

void Slots::reset_peak() {
  used_.reset_peak();
  tensors_.reset_peak();
}

void Slots::reset_accumulated() {
  used_.reset_accumulated();
  tensors_.reset_accumulated();
}

Slots::Writing::iterator Slots::forget(Writing::iterator entry) {
  coming_ -= entry->spare;
  places_.erase(entry->block);
  return writing_.erase(entry);
}

void Slots::shrink(Block& block) {
  HostBuffer& buffer = block.host.buffer;
  const size_t size = buffer.size();
  const size_t expected = size - std::exchange(block.host.spare, 0);
  const size_t end = pages(Packer::end(buffer));
  const bool filled = end <= expected && expected - end <= expected / kEmpty;
  // A page-in that was issued before the end was known reads what was expected.
  const bool read = !filled && end < expected && block.arrived && !block.arrived->done();
  arena_.shrink(buffer, filled || read ? expected : end);
  used_.add(static_cast<int64_t>(buffer.size()) - static_cast<int64_t>(size));
}

} // namespace torch::cuda::lms
