// Tells the guard about operators, and about every storage whose address is needed, with the hooks
// of c10/core/LMS.h.

#include <torch/csrc/cuda/lms/guard/guard.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/device/active.h>
#include <torch/csrc/cuda/lms/device/runtime.h>
#include <torch/csrc/cuda/lms/guard/operator.h>

#include <c10/core/LMS.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <vector>

namespace torch::cuda::lms {

namespace {

// The operators that this thread runs, and the storages that they write.
struct Writes {
  struct Frame {
    size_t first; // index of its first storage
    bool all; // it may write any storage: its schema is incomplete, or it writes a sparse tensor
  };
  std::vector<Frame> frames;
  std::vector<const c10::StorageImpl*> storages;
};

Writes& writes() {
  static thread_local Writes instance;
  return instance;
}

bool written(const c10::StorageImpl& storage) {
  const Writes& self = writes();
  return self.frames.empty() ||
         std::any_of(
             self.frames.begin(),
             self.frames.end(),
             [](const Writes::Frame& frame) { return frame.all; }) ||
         std::find(self.storages.begin(), self.storages.end(), &storage) != self.storages.end();
}

void begin(const char* name, c10::TensorImpl* const* tensors, size_t count) {
  const Operator& op = Operator::of(name);
  Writes& self = writes();
  self.frames.push_back({self.storages.size(), op.writes_all});
  for (size_t i = 0; i < count; ++i) {
    if (!tensors[i]) {
      continue;
    }
    if (tensors[i]->has_storage()) {
      self.storages.push_back(tensors[i]->storage().unsafeGetStorageImpl());
    } else {
      self.frames.back().all = true; // a sparse tensor
    }
  }
  Guard::begin(op.kind, name, /*lasting=*/true);
}

void end() {
  Guard::check_refused();
  Guard::end();
  Writes& self = writes();
  self.storages.resize(self.frames.back().first);
  self.frames.pop_back();
}

void* address(const c10::StorageImpl& constant) {
  auto& storage = const_cast<c10::StorageImpl&>(constant);
  const at::DataPtr& data = compat::data_ptr(storage);
  const Settings& settings = Runtime::get().settings;
  if (settings.enabled && !Lock::held()) {
    const bool managed = data.get_deleter() == &Registry::deleter;
    if (!managed && !writes().frames.empty() && compat::nbytes(storage) < settings.size) {
      return data.get(); // too small to be moved, and the operator does not keep the address
    }
    const bool write = written(storage);
    if (!Guard::has_pinned(data.get_context(), write)) {
      Guard::address_taken(storage, write);
      count_active(storage.device().index());
    }
  }
  return data.get();
}

const c10::lms::Hooks kHooks = {address, begin, end};

} // namespace

void Guard::install() {
  c10::lms::hooks.store(&kHooks, std::memory_order_release);
}

void Guard::remove() {
  c10::lms::hooks.store(nullptr, std::memory_order_release);
}

} // namespace torch::cuda::lms
