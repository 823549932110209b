// Another observer of operators, like a profiler. It can make one operator wait.

#include <ATen/record_function.h>

#include <condition_variable>
#include <memory>
#include <mutex>

namespace {

enum class Gate { Open, Closed, Reached };

std::mutex mutex;
std::condition_variable changed;
Gate gate = Gate::Open;
at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction&) {
  std::unique_lock<std::mutex> lock(mutex);
  if (gate == Gate::Closed) { // all other operators pass
    gate = Gate::Reached;
    changed.notify_all();
    changed.wait(lock, [] { return gate == Gate::Open; });
  }
  return nullptr;
}

void set(Gate next) {
  const std::lock_guard<std::mutex> lock(mutex);
  gate = next;
  changed.notify_all();
}

} // namespace

extern "C" void add_gate() {
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(on_start).scopes({at::RecordScope::FUNCTION}));
}

extern "C" void remove_gate() {
  at::removeCallback(handle);
}

extern "C" void close_gate() {
  set(Gate::Closed);
}

extern "C" void open_gate() {
  set(Gate::Open);
}

extern "C" void wait_at_gate() {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [] { return gate == Gate::Reached; });
}

// A range in C++ code, with a name that is not an operator's.
extern "C" void in_range(void (*inside)()) {
  RECORD_FUNCTION("aten::lms_range", c10::ArrayRef<const c10::IValue>{});
  inside();
}
