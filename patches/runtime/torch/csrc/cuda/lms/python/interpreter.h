#pragma once

#include <cstddef>

// Never looked into, because its layout differs between builds of Python.
struct _object;
using PyObject = _object;

namespace torch::cuda::lms {

using PySize = ptrdiff_t; // Py_ssize_t

// A function that Python calls: PyMethodDef, whose layout is part of the stable ABI.
struct PyMethod {
  const char* name;
  void* function;
  int flags;
  const char* documentation;
};

// PyMethod::flags, and the types of such functions. They are part of the stable ABI, too.
constexpr int kKeywords = 0x0002;
constexpr int kNoArguments = 0x0004;
constexpr int kOneArgument = 0x0008;
constexpr int kVector = 0x0080;
using PyVectorFunction =
    PyObject*(PyObject* self, PyObject* const* arguments, PySize count, PyObject* names);
using PyFunction = PyObject*(PyObject* self, PyObject* argument);

// The Python interpreter of this process: functions of its stable ABI, and PyObject_Vectorcall,
// which belongs to it since 3.12 and has been the same since 3.9. They are looked up at run time,
// so that the library does not depend on Python's version, and can be loaded without Python.
struct Interpreter {
  // Null if this process has no Python, or one that lacks a function.
  static const Interpreter* get();

  void (*Py_IncRef)(PyObject*);
  void (*Py_DecRef)(PyObject*);
  PyObject* (*PyObject_Type)(PyObject*); // a new reference
  PyObject* (*PyObject_GetAttr)(PyObject*, PyObject* name);
  PyObject* (*PyObject_Vectorcall)(PyObject*, PyObject* const*, size_t count, PyObject* names);
  PyObject* (*PyUnicode_InternFromString)(const char*);
  PyObject* (*PyLong_FromVoidPtr)(void*);
  void* (*PyLong_AsVoidPtr)(PyObject*);
  PyObject* (*PyBool_FromLong)(long);
  PyObject* (*PyDescr_NewMethod)(PyObject* type, PyMethod*);
  PyObject* (*PyCFunction_NewEx)(PyMethod*, PyObject* self, PyObject* module);
  PySize (*PyTuple_Size)(PyObject*);
  void (*PyErr_Clear)();
  void (*PyErr_Fetch)(PyObject** type, PyObject** value, PyObject** traceback);
  void (*PyErr_Restore)(PyObject* type, PyObject* value, PyObject* traceback);
  void (*PyErr_SetString)(PyObject* type, const char* message);
  void* (*PyEval_SaveThread)();
  void (*PyEval_RestoreThread)(void*);
};

} // namespace torch::cuda::lms
