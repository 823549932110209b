// What a C++ extension does with a storage without asking PyTorch's dispatcher.

#include <c10/core/StorageImpl.h>

// The storage's memory goes, and the storage lives on without any.
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
