#include <torch/csrc/cuda/lms/block/slices.h>

#include <torch/csrc/cuda/lms/compat/compat.h>

#include <algorithm>
#include <vector>

namespace torch::cuda::lms {

namespace {

std::vector<c10::DeleterFnPtr>& deleters() {
  static std::vector<c10::DeleterFnPtr> known;
  return known;
}

bool made_by(c10::DeleterFnPtr deleter) {
  return std::find(deleters().begin(), deleters().end(), deleter) != deleters().end();
}

} // namespace

void Slices::learn(c10::StorageImpl& slice, const c10::StorageImpl& sliced) {
  const at::DataPtr& data = compat::data_ptr(slice);
  if (data.get_context() == &sliced && !made_by(data.get_deleter())) {
    deleters().push_back(data.get_deleter());
  }
}

c10::StorageImpl& Slices::whole(c10::StorageImpl& storage) {
  c10::StorageImpl* found = &storage;
  while (made_by(compat::data_ptr(*found).get_deleter())) {
    found = static_cast<c10::StorageImpl*>(compat::data_ptr(*found).get_context());
  }
  return *found;
}

} // namespace torch::cuda::lms
