#include <torch/csrc/cuda/lms/python/tensors.h>

#include <cstring>

namespace torch::cuda::lms {

namespace {

struct Known {
  PyObject* type = nullptr;
  PyObject* parameter = nullptr;
  PyObject* cdata = nullptr; // the string "_cdata"
  size_t place = 0; // of the tensor's address in an object, in bytes; 0 if it was not found
};
Known known;

uintptr_t word(PyObject* object, size_t place) {
  uintptr_t value = 0;
  std::memcpy(&value, reinterpret_cast<const char*>(object) + place, sizeof value);
  return value;
}

// Until 2.9 the address was in a union, after a flag that says which of its members is in use.
bool flagged(PyObject* object, size_t place) {
  constexpr size_t kHeader = 2 * sizeof(uintptr_t); // of every object
  return place > kHeader && (word(object, place - sizeof(uintptr_t)) & 0xff) != 0;
}

uintptr_t attribute(const Interpreter& python, PyObject* object) {
  PyObject* const number = python.PyObject_GetAttr(object, known.cdata);
  if (number == nullptr) {
    python.PyErr_Clear();
    return 0;
  }
  const auto value = reinterpret_cast<uintptr_t>(python.PyLong_AsVoidPtr(number));
  python.Py_DecRef(number);
  return value;
}

} // namespace

void Tensors::learn(
    PyObject* type,
    PyObject* parameter,
    PyObject* sample,
    PyObject* other,
    size_t size) {
  const Interpreter& python = *Interpreter::get();
  known.cdata = python.PyUnicode_InternFromString("_cdata");
  known.type = type;
  known.parameter = parameter;
  python.Py_IncRef(type);
  python.Py_IncRef(parameter);
  const uintptr_t first = attribute(python, sample);
  const uintptr_t second = attribute(python, other);
  for (size_t place = sizeof(uintptr_t); place + sizeof(uintptr_t) <= size;
       place += sizeof(uintptr_t)) {
    if (first != 0 && second != first && word(sample, place) == first &&
        word(other, place) == second && !flagged(sample, place) && !flagged(other, place)) {
      known.place = place;
      break;
    }
  }
}

c10::TensorImpl* Tensors::find(const Interpreter& python, PyObject* object) {
  PyObject* const type = python.PyObject_Type(object);
  const bool plain = type == known.type || type == known.parameter;
  python.Py_DecRef(type);
  if (!plain) {
    return nullptr;
  }
  const uintptr_t found = known.place != 0 && !flagged(object, known.place)
                              ? word(object, known.place)
                              : attribute(python, object);
  return reinterpret_cast<c10::TensorImpl*>(found);
}

} // namespace torch::cuda::lms
