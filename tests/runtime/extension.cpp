// What a C++ extension can do with a storage without going through PyTorch's dispatcher.

#include <c10/core/StorageImpl.h>

// Removes the storage's memory; the storage itself still exists.
extern "C" void drop_memory(c10::StorageImpl* storage) {
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
}

// Whether reading the address throws.
extern "C" bool read_throws(const c10::StorageImpl* storage) {
  try {
    (void)storage->data();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}
