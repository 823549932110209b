// These releases compile no code whose kernels Python launches. Python's part calls only
// the first of these functions, if any.

#include <torch/csrc/cuda/lms/python/python.h>

int lms_python_start(PyObject*, PyObject*, PyObject*, PyObject*, size_t, PyObject*, PyObject*) {
  return 0;
}

PyObject* lms_python_launch(PyObject*, PyObject*, PyObject*, int) {
  return nullptr;
}

void* lms_python_kernel(const char*, uint64_t) {
  return nullptr;
}

PyObject* lms_python_data_ptr(PyObject*, PyObject*) {
  return nullptr;
}

PyObject* lms_python_misaligned() {
  return nullptr;
}
