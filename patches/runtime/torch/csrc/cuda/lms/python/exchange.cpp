#include <torch/csrc/cuda/lms/python/python.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

using namespace torch::cuda::lms;

namespace {

// DLPackExchangeAPI of DLPack's version 1, for consumers that call no Python function.
struct Exchange {
  uint32_t major;
  uint32_t minor;
  const void* older;
  void* allocate;
  int (*managed)(void* object, void** tensor);
  void* to_object;
  int (*borrowed)(void* object, void* tensor); // may be null
  void* current_stream;
};

// What a structure had before it was changed. PyTorch has one from 2.10 on; extensions bring their
// own for releases without it.
struct Original {
  Exchange* exchange = nullptr;
  int (*managed)(void*, void**) = nullptr;
  int (*borrowed)(void*, void*) = nullptr;
};

constexpr size_t kExchanges = 4;
std::array<Original, kExchanges> originals;
size_t exchange_count = 0;
PyObject* takes_address = nullptr;

// Tells LMS that somebody gets the tensor's address. Returns false, and sets Python's error, if the
// tensor cannot be brought. Consumers call these functions with the GIL.
bool tell(void* object) {
  const Interpreter& python = *Interpreter::get();
  auto* const tensor = static_cast<PyObject*>(object);
  PyObject* const result = python.PyObject_Vectorcall(takes_address, &tensor, 1, nullptr);
  if (result == nullptr) {
    return false;
  }
  python.Py_DecRef(result);
  return true;
}

template <size_t Index>
int managed(void* object, void** tensor) {
  return tell(object) ? originals[Index].managed(object, tensor) : -1;
}

template <size_t Index>
int borrowed(void* object, void* tensor) {
  return tell(object) ? originals[Index].borrowed(object, tensor) : -1;
}

template <size_t Index>
void replace(Exchange& exchange) {
  exchange.managed = managed<Index>;
  exchange.borrowed = exchange.borrowed != nullptr ? borrowed<Index> : nullptr;
}

template <size_t... Index>
constexpr std::array<void (*)(Exchange&), kExchanges> replacements(std::index_sequence<Index...>) {
  return {replace<Index>...};
}

} // namespace

int lms_python_exchange(void* structure, PyObject* function) {
  static constexpr auto functions = replacements(std::make_index_sequence<kExchanges>());
  auto& exchange = *static_cast<Exchange*>(structure);
  for (size_t i = 0; i < exchange_count; ++i) {
    if (originals[i].exchange == &exchange) {
      return 1;
    }
  }
  if (exchange.major != 1 || exchange_count == kExchanges) {
    return 0;
  }
  if (takes_address == nullptr) {
    Interpreter::get()->Py_IncRef(function);
    takes_address = function;
  }
  originals[exchange_count] = {&exchange, exchange.managed, exchange.borrowed};
  functions[exchange_count++](exchange);
  return 1;
}
