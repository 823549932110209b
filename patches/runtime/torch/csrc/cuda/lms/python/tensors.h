#pragma once

#include <torch/csrc/cuda/lms/python/interpreter.h>

#include <c10/core/TensorImpl.h>

#include <cstddef>

namespace torch::cuda::lms {

// Finds the tensor in a Python object of the types torch.Tensor and torch.nn.Parameter, but not of
// their subclasses, whose methods may do anything.
class Tensors {
 public:
  // `type` and `parameter` are the two types. `sample` and `other` are two tensors, from which the
  // place of the tensor in an object is learned: where both contain the address that their
  // attribute _cdata has. `size` is __basicsize__, in bytes.
  static void
  learn(PyObject* type, PyObject* parameter, PyObject* sample, PyObject* other, size_t size);

  // Null if the object is not of one of the two types. Must be called with the GIL.
  static c10::TensorImpl* find(const Interpreter& python, PyObject* object);
};

} // namespace torch::cuda::lms
