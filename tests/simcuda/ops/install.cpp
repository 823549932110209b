// Registers the stand-in kernel for the operators that have a CUDA kernel.
#include <ATen/Context.h>
#include <torch/library.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>

#include "bare.h"
#include "operator.h"
#include "release.h"
#include "substitutes.h"

#define SIMOPS_API extern "C" __attribute__((visibility("default")))

namespace simops {
namespace {

// Operators that stay torch's own: they allocate, look at metadata only, or copy memory.
const std::set<std::string> kNative = {
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_efficientzerotensor",
    "aten::_fused_sdp_choice",
    "aten::_local_scalar_dense",
    "aten::_pin_memory",
    "aten::_reshape_alias",
    "aten::alias",
    "aten::as_strided",
    "aten::copy_",
    "aten::empty",
    "aten::empty_strided",
    "aten::is_pinned",
    "aten::is_set_to",
    "aten::pin_memory",
    "aten::record_stream",
    "aten::resize_",
    "aten::set_",
    "aten::unfold",
    "aten::view",
    "aten::view_as_complex",
    "aten::view_as_real",
};

// Operators without a CUDA kernel of their own that choose a CUDA library inside.
const std::set<std::string> kLibraryChoosers = {"aten::convolution", "aten::convolution_backward"};

bool has_cpu_semantics(const c10::OperatorHandle& op) {
  for (const auto key :
       {c10::DispatchKey::CPU,
        c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
        c10::DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key))
      return true;
  }
  return false;
}

bool chosen(const c10::OperatorHandle& op, bool bare) {
  const std::string& name = op.operator_name().name;
  if (kLibraryChoosers.count(name) != 0)
    return true;
  if (bare)
    return kNative.count(name) == 0 && op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (kNative.count(name) != 0 || !op.hasKernelForDispatchKey(c10::DispatchKey::CUDA))
    return false;
  return has_cpu_semantics(op) || find_substitute(name) != nullptr;
}

std::unique_ptr<torch::Library> g_library;

} // namespace
} // namespace simops

// Returns how many operators were given their CPU semantics.
SIMOPS_API long simops_install() {
  using namespace simops;
  Quiet quiet; // overriding a kernel warns, each time
  const WarningGuard guard(&quiet);
  auto library = std::make_unique<torch::Library>(
      torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const bool bare = is_bare();
  long count = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0)
      continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !chosen(*op, bare))
      continue;
    library->impl(
        c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_operator>());
    ++count;
  }
  if (bare)
    install_bare(*library);
  else
    library->impl("aten::copy_", torch::CppFunction::makeFromBoxedFunction<&run_copy>());
  g_library = std::move(library);
  // Their kernels are not operators, so they have no CPU semantics.
  choose_plain_kernels(at::globalContext());
  return count;
}

SIMOPS_API long simops_operators_run() {
  return simops::operators_run();
}
