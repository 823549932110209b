#pragma once

// Code that is the same for every release; each compat.h includes it.

#include <c10/core/StorageImpl.h>

namespace torch::cuda::lms::compat {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using StrongStorage = c10::intrusive_ptr<c10::StorageImpl>;

inline WeakStorage weak(c10::StorageImpl& storage) {
  return WeakStorage(StrongStorage::unsafe_reclaim_from_nonowning(&storage));
}

} // namespace torch::cuda::lms::compat
