#include <torch/csrc/cuda/lms/python/interpreter.h>

#include <dlfcn.h>

namespace torch::cuda::lms {

namespace {

template <class F>
bool find(const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

} // namespace

const Interpreter* Interpreter::get() {
#define LMS_FIND(name) find(#name, found.name)
  static const Interpreter* const instance = [] {
    static Interpreter found;
    const bool complete =
        LMS_FIND(Py_IncRef) && LMS_FIND(Py_DecRef) && LMS_FIND(PyObject_Type) &&
        LMS_FIND(PyObject_GetAttr) && LMS_FIND(PyObject_Vectorcall) &&
        LMS_FIND(PyUnicode_InternFromString) && LMS_FIND(PyLong_FromVoidPtr) &&
        LMS_FIND(PyLong_AsVoidPtr) && LMS_FIND(PyBool_FromLong) && LMS_FIND(PyDescr_NewMethod) &&
        LMS_FIND(PyCFunction_NewEx) && LMS_FIND(PyTuple_Size) && LMS_FIND(PyErr_Clear) &&
        LMS_FIND(PyErr_Fetch) && LMS_FIND(PyErr_Restore) && LMS_FIND(PyErr_SetString) &&
        LMS_FIND(PyEval_SaveThread) && LMS_FIND(PyEval_RestoreThread);
    return complete ? &found : nullptr;
  }();
#undef LMS_FIND
  return instance;
}

} // namespace torch::cuda::lms
