#include <torch/csrc/cuda/lms/python/python.h>

#include <torch/csrc/cuda/lms/base/lock.h>
#include <torch/csrc/cuda/lms/device/runtime.h>
#include <torch/csrc/cuda/lms/guard/counter.h>
#include <torch/csrc/cuda/lms/guard/data.h>
#include <torch/csrc/cuda/lms/guard/guard.h>
#include <torch/csrc/cuda/lms/python/tensors.h>

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <string>
#include <utility>

using namespace torch::cuda::lms;

namespace {

struct Kernel {
  std::string name;
  uint64_t reads = 0; // a bit for each of the first 64 arguments
};

const Kernel& unknown_kernel() {
  static const auto* const kernel = new Kernel{"a kernel", 0};
  return *kernel;
}

// Of the interpreter that called lms_python_start().
const Interpreter* python = nullptr;
PyObject* out_of_memory_error = nullptr;
PyObject* runtime_error = nullptr;

// ---- launches ----

// The launches that this thread is in.
struct Launches {
  size_t counted = 0; // how many of them were only counted: nothing is moved before they end
  c10::SmallVector<c10::StorageImpl*, 16> pinned; // by the others
};

Launches& launches() {
  static thread_local Launches instance;
  return instance;
}

c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  const c10::Storage& storage = tensor.unsafe_storage();
  const bool on_device = tensor.key_set().has_backend(c10::BackendComponent::CUDABit);
  return storage && on_device ? storage.unsafeGetStorageImpl() : nullptr;
}

// One launch of this thread.
class Launch {
 public:
  Launch() : counted_(Counter::count()), first_(launches().pinned.size()) {
    launches().counted += counted_;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  bool counted() const {
    return counted_;
  }

  // Brings the tensors among the arguments to the device. Returns false, and sets Python's error,
  // if they do not fit. Then end() must not be called. For a launch that is not counted.
  bool begin(const Kernel& kernel, PyObject* const* arguments, size_t positional, size_t count) {
    Guard::Inputs inputs;
    auto& pinned = launches().pinned;
    for (size_t i = 0; i < count; ++i) {
      if (const c10::TensorImpl* const tensor = Tensors::find(*python, arguments[i])) {
        c10::StorageImpl* const storage = storage_of(*tensor);
        const auto outer = pinned.begin() + first_; // what a launch around this one has pinned
        if (storage && std::find(pinned.begin(), outer, storage) == outer) {
          const bool reads = i < std::min<size_t>(positional, 64) && (kernel.reads >> i & 1) != 0;
          inputs.push_back({storage, !reads, kind_of(*tensor)});
          pinned.push_back(storage);
        }
      }
    }
    std::string failure;
    PyObject* kind = runtime_error;
    // A page-in may wait for work that another thread can only issue with the GIL.
    void* const thread = python->PyEval_SaveThread();
    try {
      Guard::begin_region(kernel.name.c_str(), inputs);
    } catch (const c10::OutOfMemoryError& error) {
      failure = error.what_without_backtrace();
      kind = out_of_memory_error;
    } catch (const c10::Error& error) {
      failure = error.what_without_backtrace();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    python->PyEval_RestoreThread(thread);
    if (failure.empty()) {
      return true;
    }
    pinned.resize(first_);
    python->PyErr_SetString(kind, failure.c_str());
    return false;
  }

  void end(bool failed) {
    if (counted_) {
      --launches().counted;
      Counter::uncount();
      return;
    }
    launches().pinned.resize(first_);
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    void* thread = nullptr;
    if (failed) {
      python->PyErr_Fetch(&type, &value, &traceback);
      thread = python->PyEval_SaveThread(); // it may wait, as in begin()
    }
    try {
      failed ? Guard::end_failed_region() : Guard::end_region();
    } catch (const std::exception&) {
      // The kernel is launched or has failed, and that is what the caller has to know. PyTorch
      // ignores such an exception at the end of an operator, too.
    }
    if (failed) {
      python->PyEval_RestoreThread(thread);
      python->PyErr_Restore(type, value, traceback);
    }
  }

 private:
  const bool counted_;
  const size_t first_; // of launches().pinned
};

// A type whose method launches kernels. A function that Python calls knows only the object that it
// is a method of, so each type has a function of its own.
struct Launcher {
  PyObject* original;
  PyObject* describe; // null if there is none
  PyMethod method;
};

constexpr size_t kLaunchers = 16;
std::array<Launcher, kLaunchers> launchers;
size_t launcher_count = 0;
PyObject* kernel_name = nullptr; // the string "_lms_kernel"

const Kernel* as_kernel(PyObject* number) {
  if (number == nullptr) {
    python->PyErr_Clear();
    return nullptr;
  }
  const auto* const kernel = static_cast<const Kernel*>(python->PyLong_AsVoidPtr(number));
  python->Py_DecRef(number);
  if (kernel == nullptr) {
    python->PyErr_Clear(); // it was not a number
  }
  return kernel;
}

const Kernel& kernel_of(const Launcher& launcher, PyObject* self) {
  if (launcher.describe == nullptr) {
    return unknown_kernel();
  }
  const Kernel* kernel = as_kernel(python->PyObject_GetAttr(self, kernel_name));
  if (C10_UNLIKELY(kernel == nullptr)) {
    kernel = as_kernel(python->PyObject_Vectorcall(launcher.describe, &self, 1, nullptr));
  }
  return kernel != nullptr ? *kernel : unknown_kernel();
}

template <size_t Index>
PyObject* run(PyObject* self, PyObject* const* arguments, PySize given, PyObject* names) {
  const Launcher& launcher = launchers[Index];
  const auto positional = static_cast<size_t>(given);
  const size_t named = names == nullptr ? 0 : static_cast<size_t>(python->PyTuple_Size(names));
  Launch launch;
  if (C10_LIKELY(!launch.counted()) &&
      !launch.begin(kernel_of(launcher, self), arguments, positional, positional + named)) {
    return nullptr;
  }
  c10::SmallVector<PyObject*, 32> all{self};
  all.append(arguments, arguments + positional + named);
  PyObject* const result =
      python->PyObject_Vectorcall(launcher.original, all.data(), positional + 1, names);
  launch.end(result == nullptr);
  return result;
}

template <size_t... Index>
constexpr std::array<PyVectorFunction*, kLaunchers> runs(std::index_sequence<Index...>) {
  return {run<Index>...};
}

// ---- addresses ----

PyObject* guarded_data_ptr = nullptr;

PyObject* data_ptr(PyObject* self, PyObject*) {
  const Launches& now = launches();
  if (now.counted > 0 || !now.pinned.empty()) {
    c10::TensorImpl* const tensor = Tensors::find(*python, self);
    c10::StorageImpl* const storage = tensor ? storage_of(*tensor) : nullptr;
    const auto pinned = std::find(now.pinned.begin(), now.pinned.end(), storage);
    if (storage && (now.counted > 0 || pinned != now.pinned.end())) {
      try {
        return python->PyLong_FromVoidPtr(tensor->mutable_data());
      } catch (const std::exception&) {
        // The other function says what is wrong.
      }
    }
  }
  return python->PyObject_Vectorcall(guarded_data_ptr, &self, 1, nullptr);
}

PyObject* misaligned(PyObject*, PyObject* object) {
  constexpr uintptr_t kAlignment = 16; // bytes; PyTorch's native allocator aligns to 512
  bool may_be = true;
  if (const c10::TensorImpl* const tensor = Tensors::find(*python, object)) {
    if (c10::StorageImpl* const storage = storage_of(*tensor)) {
      const Lock lock;
      const auto offset = static_cast<uintptr_t>(tensor->storage_offset()) * tensor->itemsize();
      const bool managed = Registry::block_of(*storage) != nullptr;
      const auto start = reinterpret_cast<uintptr_t>(compat::data_ptr(*storage).get());
      may_be = ((managed ? 0 : start) + offset) % kAlignment != 0;
    }
  }
  return python->PyBool_FromLong(may_be);
}

} // namespace

int lms_python_start(
    PyObject* type,
    PyObject* parameter,
    PyObject* sample,
    PyObject* other,
    size_t size,
    PyObject* out_of_memory,
    PyObject* error) {
  python = Interpreter::get();
  if (python == nullptr) {
    return 0;
  }
  Tensors::learn(type, parameter, sample, other, size);
  kernel_name = python->PyUnicode_InternFromString("_lms_kernel");
  python->Py_IncRef(out_of_memory);
  out_of_memory_error = out_of_memory;
  python->Py_IncRef(error);
  runtime_error = error;
  return 1;
}

PyObject* lms_python_launch(PyObject* type, PyObject* original, PyObject* describe, int describes) {
  static constexpr auto functions = runs(std::make_index_sequence<kLaunchers>());
  if (launcher_count == kLaunchers) {
    return nullptr;
  }
  Launcher& launcher = launchers[launcher_count];
  launcher.original = original;
  launcher.describe = describes ? describe : nullptr;
  launcher.method = {
      "run",
      reinterpret_cast<void*>(functions[launcher_count]),
      kVector | kKeywords,
      // The first line tells inspect.signature(), which Inductor calls, what the parameters are.
      "run($self, /, *args, **kwargs)\n--\n\nLaunches a kernel that torch.cuda.lms sees."};
  python->Py_IncRef(original);
  python->Py_IncRef(describe);
  ++launcher_count;
  return python->PyDescr_NewMethod(type, &launcher.method);
}

void* lms_python_kernel(const char* name, uint64_t reads) {
  return new Kernel{name, reads};
}

PyObject* lms_python_data_ptr(PyObject* type, PyObject* guarded) {
  static PyMethod method{
      "data_ptr",
      reinterpret_cast<void*>(&data_ptr),
      kNoArguments,
      "data_ptr($self, /)\n--\n\nReturns the address of the first element; see torch.cuda.lms."};
  python->Py_IncRef(guarded);
  guarded_data_ptr = guarded;
  return python->PyDescr_NewMethod(type, &method);
}

PyObject* lms_python_misaligned() {
  static PyMethod method{
      "misaligned",
      reinterpret_cast<void*>(&misaligned),
      kOneArgument,
      "Returns False if the tensor's address is a multiple of 16."};
  return python->PyCFunction_NewEx(&method, nullptr, nullptr);
}
