// NVRTC, for kernels that can also be compiled for the CPU (cpu_kernels.h). Any other source fails
// to compile. The functions of libnvrtc call these functions (see simcuda/stubs.py).
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "cpu_kernels.h"
#include "state.h"

using namespace simcuda;

namespace {

using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInvalidInput = 3;
constexpr Result kInvalidProgram = 4;
constexpr Result kInvalidOption = 5;
constexpr Result kCompilation = 6;

constexpr int kArchitectures[] = {70, 75, 80, 90};

struct Program {
  std::string source;
  std::string log;
  std::string image;
};

std::set<Program*>& programs() {
  static auto* const all = new std::set<Program*>;
  return *all;
}

bool known_option(const std::string& option) {
  if (option.compare(0, 6, "--std=") == 0)
    return true;
  for (const int architecture : kArchitectures) {
    for (const char* const kind : {"sm_", "compute_"}) {
      if (option == "--gpu-architecture=" + (kind + std::to_string(architecture)))
        return true;
    }
  }
  return false;
}

// `text` is only used if the program exists.
Result size_of(Program* program, std::string Program::* text, size_t* size) {
  const Lock lock(state().mutex);
  if (programs().count(program) == 0)
    return kInvalidProgram;
  *size = (program->*text).size() + 1; // the compiler's texts end with a zero byte
  return kSuccess;
}

Result get(Program* program, std::string Program::* text, char* to) {
  const Lock lock(state().mutex);
  if (programs().count(program) == 0)
    return kInvalidProgram;
  std::memcpy(to, (program->*text).c_str(), (program->*text).size() + 1);
  return kSuccess;
}

} // namespace

SIMCUDA_API const char* simcuda_nvrtcGetErrorString(Result) {
  return "simulated device";
}

SIMCUDA_API Result simcuda_nvrtcVersion(int* major, int* minor) {
  SIMCUDA_ENTER_DRIVER("nvrtcVersion");
  *major = SIMCUDA_CUDART_MAJOR;
  *minor = 0;
  return kSuccess;
}

SIMCUDA_API Result simcuda_nvrtcGetNumSupportedArchs(int* count) {
  SIMCUDA_ENTER_DRIVER("nvrtcGetNumSupportedArchs");
  *count = static_cast<int>(std::size(kArchitectures));
  return kSuccess;
}

SIMCUDA_API Result simcuda_nvrtcGetSupportedArchs(int* architectures) {
  SIMCUDA_ENTER_DRIVER("nvrtcGetSupportedArchs");
  std::memcpy(architectures, kArchitectures, sizeof kArchitectures);
  return kSuccess;
}

SIMCUDA_API Result simcuda_nvrtcCreateProgram(
    Program** program,
    const char* source,
    const char*,
    int headers,
    const char* const*,
    const char* const*) {
  SIMCUDA_ENTER_DRIVER("nvrtcCreateProgram");
  if (source == nullptr || headers != 0)
    return kInvalidInput;
  const Lock lock(state().mutex);
  *program = *programs().insert(new Program{source, "", ""}).first;
  return kSuccess;
}

SIMCUDA_API Result simcuda_nvrtcDestroyProgram(Program** program) {
  SIMCUDA_ENTER_DRIVER("nvrtcDestroyProgram");
  const Lock lock(state().mutex);
  if (programs().erase(*program) == 0)
    return kInvalidProgram;
  delete *program;
  *program = nullptr;
  return kSuccess;
}

SIMCUDA_API Result
simcuda_nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  SIMCUDA_ENTER_DRIVER("nvrtcCompileProgram");
  const Lock lock(state().mutex);
  if (programs().count(program) == 0)
    return kInvalidProgram;
  if (!for_the_cpu(program->source)) {
    program->log = "the simulated device compiles no such source";
    return kCompilation;
  }
  for (int i = 0; i < count; ++i) {
    if (!known_option(options[i])) {
      program->log = std::string("no such option: ") + options[i];
      return kInvalidOption;
    }
  }
  program->image = compile_for_the_cpu(program->source, &program->log);
  return program->image.empty() ? kCompilation : kSuccess;
}

SIMCUDA_API Result simcuda_nvrtcAddNameExpression(Program*, const char*) {
  return kInvalidProgram;
}

SIMCUDA_API Result simcuda_nvrtcGetLoweredName(Program*, const char*, const char**) {
  return kInvalidProgram;
}

SIMCUDA_API Result simcuda_nvrtcGetProgramLogSize(Program* program, size_t* size) {
  SIMCUDA_ENTER_DRIVER("nvrtcGetProgramLogSize");
  return size_of(program, &Program::log, size);
}

SIMCUDA_API Result simcuda_nvrtcGetProgramLog(Program* program, char* log) {
  SIMCUDA_ENTER_DRIVER("nvrtcGetProgramLog");
  return get(program, &Program::log, log);
}

SIMCUDA_API Result simcuda_nvrtcGetPTXSize(Program* program, size_t* size) {
  SIMCUDA_ENTER_DRIVER("nvrtcGetPTXSize");
  return size_of(program, &Program::image, size);
}

SIMCUDA_API Result simcuda_nvrtcGetPTX(Program* program, char* image) {
  SIMCUDA_ENTER_DRIVER("nvrtcGetPTX");
  return get(program, &Program::image, image);
}

SIMCUDA_API Result simcuda_nvrtcGetCUBINSize(Program* program, size_t* size) {
  SIMCUDA_ENTER_DRIVER("nvrtcGetCUBINSize");
  return size_of(program, &Program::image, size);
}

SIMCUDA_API Result simcuda_nvrtcGetCUBIN(Program* program, char* image) {
  SIMCUDA_ENTER_DRIVER("nvrtcGetCUBIN");
  return get(program, &Program::image, image);
}
