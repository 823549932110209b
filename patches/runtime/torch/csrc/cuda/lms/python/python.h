#pragma once

// What torch.cuda.lms replaces Python methods with: functions that Python calls without ctypes,
// because compiled code calls them for each kernel. Load the library with ctypes.PyDLL for these;
// they need the GIL.

#include <torch/csrc/cuda/lms/base/export.h>
#include <torch/csrc/cuda/lms/python/interpreter.h>

#include <stddef.h>
#include <stdint.h>

// Must be called first. Returns 0 if Python lacks a function that this needs. For the arguments,
// see Tensors::learn(). `out_of_memory` is the exception for a launch whose tensors do not fit, and
// `error` that for one whose tensors cannot be brought for another reason.
LMS_API int lms_python_start(
    PyObject* type,
    PyObject* parameter,
    PyObject* sample,
    PyObject* other,
    size_t size,
    PyObject* out_of_memory,
    PyObject* error);

// Returns a method for a type that launches kernels. It calls `original`, and LMS treats each call
// as one operator that uses the tensors among the arguments, and those whose data_ptr() is called
// meanwhile. `describe`, a function of the object, returns the object's attribute _lms_kernel, an
// lms_python_kernel(). It is called for an object whose attribute is missing or 0, if `describes`
// is 1. There are at most 16 such types.
LMS_API PyObject*
lms_python_launch(PyObject* type, PyObject* original, PyObject* describe, int describes);

// Returns the description of a kernel, which is never freed: its name, and a bit for each of the
// first 64 positional arguments that it only reads.
LMS_API void* lms_python_kernel(const char* name, uint64_t reads);

// Returns a method data_ptr() for a type of tensors. In a launch, it returns the address of what
// the launch uses. Otherwise it calls `guarded`.
LMS_API PyObject* lms_python_data_ptr(PyObject* type, PyObject* guarded);

// Makes a DLPackExchangeAPI call `function` with each tensor before it hands out the address.
// Returns 0 if its version is not known, or if there are more than 4 of them.
LMS_API int lms_python_exchange(void* exchange, PyObject* function);

// Returns a function of a tensor: False if its address is a multiple of 16, which it says without
// bringing the tensor to its device.
LMS_API PyObject* lms_python_misaligned(void);
