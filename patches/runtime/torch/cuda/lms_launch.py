"""What torch.cuda.lms does with kernels that Python launches, and with compiled code around them.

A launch is one operator on the tensors that it gets. The methods of Inductor, Triton and others
that launch kernels are replaced when LMS is turned on, or when their module is imported after that.
"""

# This file runs on every Python that a supported PyTorch runs on: see torch.cuda.lms.

import ctypes
import functools
import inspect
import sys

import torch
from torch.cuda import lms

# Methods that launch a kernel: module, class, method. One may call another.
_LAUNCHERS = (
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "run"),
    ("triton.runtime.jit", "JITFunction", "run"),
    ("triton.runtime.interpreter", "GridExecutor", "__call__"),
    # Measures several configurations of a kernel, and what it gets stays during all of that.
    ("triton.runtime.autotuner", "Autotuner", "run"),
    ("torch.cuda._utils", "_CudaKernel", "__call__"),
    ("numba.cuda.dispatcher", "CUDADispatcher", "call"),
)


def _stream_of_torch(grid=None, block=None, args=None, shared_mem=0, stream=None):
    return stream


def _stream_of_numba(args, *how):
    # The grid, the block, the stream and the shared memory; since numba-cuda 0.30, a LaunchConfig.
    stream = how[2] if len(how) == 4 else getattr(how[-1] if how else None, "stream", None)
    if stream is None:
        return None
    handle = getattr(stream, "handle", stream)
    handle = int(getattr(handle, "value", handle) or 0)
    return torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()


# Functions that return the stream of a launch from the method's arguments, or None if it is the
# current one. Other launchers always use the current stream; for Numba's, see guard_numba().
_STREAMS = {"_CudaKernel": _stream_of_torch}


# The functions of the library that Python calls without ctypes; None if they cannot be used.
_python = None


class _Kernel(int):
    """The address of a kernel's description in the library. Another process gets 0 instead."""

    def __reduce__(self):
        return int, (0,)


class _Importer:
    """A finder of sys.meta_path: calls functions with modules when they have been imported."""

    def __init__(self):
        self._waiting = {}

    def when_imported(self, name, function):
        if name in sys.modules:
            function(sys.modules[name])
        else:
            self._waiting.setdefault(name, []).append(function)

    def find_spec(self, name, path=None, target=None):
        if name not in self._waiting:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None:
            self._follow(spec)
        return spec

    def _follow(self, spec):
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            for function in self._waiting.pop(spec.name, ()):
                function(module)

        spec.loader.exec_module = exec_module


def _start_python():
    library = ctypes.PyDLL(lms._path())
    python = ctypes.py_object
    for name, result, arguments in (
        ("start", ctypes.c_int, (python,) * 4 + (ctypes.c_size_t, python, python)),
        ("launch", python, (python, python, python, ctypes.c_int)),
        ("kernel", ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_uint64)),
        ("data_ptr", python, (python, python)),
        ("misaligned", python, ()),
        ("exchange", ctypes.c_int, (ctypes.c_void_p, python)),
    ):
        function = getattr(library, "lms_python_" + name)
        function.restype = result
        function.argtypes = arguments
    base = torch.Tensor.__base__
    samples = torch.empty(0), torch.nn.Parameter(torch.empty(0))
    errors = getattr(torch.cuda, "OutOfMemoryError", RuntimeError), RuntimeError
    started = library.lms_python_start(
        torch.Tensor, torch.nn.Parameter, samples[0], samples[1], base.__basicsize__, *errors
    )
    return library if started else None


def guard():
    """Replaces the methods that launch kernels, and the functions that look at addresses for them.

    Called once, after ``torch.Tensor.data_ptr`` has been replaced.
    """
    global _python
    _python = _start_python()
    importer = _Importer()
    for module, name, method in _LAUNCHERS:
        importer.when_imported(module, functools.partial(_guard_module, name, method))
    importer.when_imported("torch._inductor.runtime.benchmarking", _guard_benchmarks)
    if _python is not None:
        torch.Tensor.data_ptr = _python.lms_python_data_ptr(
            torch.Tensor.__base__, torch.Tensor.data_ptr
        )
        misaligned = _python.lms_python_misaligned()
        importer.when_imported(
            "torch._inductor.utils", functools.partial(_guard_alignment, misaligned)
        )
        _guard_copies(misaligned)
    # For releases of PyTorch without DLPack's C interface, these modules bring one.
    for module in ("tvm_ffi._optional_torch_c_dlpack", "torch_c_dlpack_ext.core"):
        importer.when_imported(module, _guard_exchange)
    _guard_exchange()
    _guard_packages()
    sys.meta_path.insert(0, importer)


def _guard_exchange(_=None):
    """DLPack's C interface tells LMS of the addresses that it hands out, or is not offered."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
    # The second name is that of tvm-ffi before 0.1.5, where it may also be a number.
    for name in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"):
        found = vars(torch.Tensor).get(name)
        if found is None:
            continue
        pointer = found if isinstance(found, int) else pointer_of(found, b"dlpack_exchange_api")
        if _python is None or not _python.lms_python_exchange(pointer, lms._take_tensor_address):
            delattr(torch.Tensor, name)  # consumers use __dlpack__() then


def _guard_module(name, method, module):
    kind = getattr(module, name, None)
    if isinstance(kind, type) and method in vars(kind):
        if name == "CUDADispatcher":
            guard_numba(kind, method)
        else:
            describe = _describe if name == "CachingAutotuner" else None
            guard_launcher(kind, method, describe, _STREAMS.get(name))


def guard_numba(kind, method):
    """Makes LMS see the launches of Numba, which get a tuple of arguments.

    Numba asks tensors for their ``__cuda_array_interface__`` in each launch, and keeps none.
    """
    original = vars(kind)[method]
    launch = _on_its_stream(original, lms._as_operator(original), _stream_of_numba)

    @functools.wraps(original)
    def wrapper(self, *args, **kwargs):
        with lms._lends():
            return launch(self, *args, **kwargs)

    setattr(kind, method, wrapper)


def guard_launcher(kind, method, describe=None, stream_of=None):
    """Makes LMS see the launches of a class: the calls of its method.

    ``describe`` returns the address of a kernel's description; see lms_python_launch().
    ``stream_of`` returns the stream of a launch; see _STREAMS.
    """
    original = vars(kind)[method]
    if _python is None:
        launch = lms._as_operator(original)
    else:
        launch = _python.lms_python_launch(kind, original, describe, describe is not None)
    if stream_of is not None:
        launch = _on_its_stream(original, launch, stream_of)
    setattr(kind, method, launch)


def _on_its_stream(original, launch, stream_of):
    """LMS orders what it brings with the current stream."""

    @functools.wraps(original)
    def wrapper(self, *args, **kwargs):
        stream = stream_of(*args, **kwargs) if lms._settings["enabled"] else None
        if stream is None:
            return launch(self, *args, **kwargs)
        with torch.cuda.stream(stream):
            return launch(self, *args, **kwargs)

    return wrapper


def _describe(kernel):
    """Describes a kernel of Inductor's to the library, and returns the address of that."""
    name = "a Triton kernel"
    reads = 0
    try:
        name = kernel.inductor_meta.get("kernel_name") or kernel.fn.__name__
        # The arguments of Inductor's own kernels have such a name if they are only read. Other
        # arguments, and those of a user's kernels, may be written.
        if not kernel.custom_kernel:
            for index, argument in enumerate(kernel.fn.arg_names[:64]):
                if argument.startswith("in_ptr") and argument not in kernel.mutated_arg_names:
                    reads |= 1 << index
    except AttributeError:
        reads = 0
    kernel._lms_kernel = _Kernel(_python.lms_python_kernel(name.encode("utf-8"), reads))
    return kernel._lms_kernel


def _guard_benchmarks(module):
    """What is measured, or used by what is measured, stays on the GPU until that is done."""
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            for name, method in list(vars(kind).items()):
                if name.startswith("benchmark") and inspect.isfunction(method):
                    setattr(kind, name, lms._as_operator(method))


def _guard_alignment(misaligned, module):
    """Compiled code copies inputs that are not aligned. Looking at them need not bring them."""
    copy_misaligned_inputs = getattr(module, "copy_misaligned_inputs", None)
    if copy_misaligned_inputs is None:
        return

    @functools.wraps(copy_misaligned_inputs)
    def wrapper(new_inputs, check_inputs_idxs, *args, **kwargs):
        if lms._settings["enabled"]:
            check_inputs_idxs = [i for i in check_inputs_idxs if misaligned(new_inputs[i])]
        return copy_misaligned_inputs(new_inputs, check_inputs_idxs, *args, **kwargs)

    users = [user for name, user in sys.modules.items() if name.startswith("torch._inductor")]
    _replace(copy_misaligned_inputs, wrapper, [module, *users])


def _guard_copies(misaligned):
    """The same for newer releases, where the code itself calls a function of C for each input."""
    guards = torch._C._dynamo.guards
    copy_if_misaligned = getattr(guards, "copy_if_misaligned", None)
    if copy_if_misaligned is None:
        return
    in_region = lms._as_operator(copy_if_misaligned)

    @functools.wraps(copy_if_misaligned)
    def wrapper(tensor):
        if lms._settings["enabled"]:
            return in_region(tensor) if misaligned(tensor) else tensor
        return copy_if_misaligned(tensor)

    guards.copy_if_misaligned = wrapper
    # Generated modules that exist already have imported it by name.
    codecache = sys.modules.get("torch._inductor.codecache")
    _replace(copy_if_misaligned, wrapper, codecache.PyCodeCache.modules if codecache else ())


def _guard_packages():
    """AOTInductor's packages launch their kernels in C++: a call is one operator on its inputs."""
    packages = getattr(torch._C, "_aoti", None)
    for name in ("AOTIModelContainerRunnerCuda", "AOTIModelPackageLoader"):
        kind = getattr(packages, name, None)
        for method, guarded in (
            ("run", lms._as_operator),
            ("boxed_run", lms._as_operator),
            ("load_constants", _keeps_constants),
            ("update_constant_buffer", _keeps_constants),
        ):
            if kind is not None and hasattr(kind, method):
                setattr(kind, method, guarded(getattr(kind, method)))


def _keeps_constants(function):
    """Wraps a package's method that takes constants: it may keep their addresses."""
    guarded = lms._as_operator(function)

    @functools.wraps(function)
    def wrapper(package, constants, *args, **kwargs):
        # After whether they are the inactive ones, and whether all have to be there.
        if kwargs.get("user_managed", any(args[2:])):
            for tensor in constants.values():
                lms._take_tensor_address(tensor)
        return guarded(package, constants, *args, **kwargs)

    return wrapper


def _replace(function, replacement, modules):
    for module in list(modules):
        if vars(module).get(function.__name__) is function:
            setattr(module, function.__name__, replacement)


# ---- compiled code -----------------------------------------------------------


def launches_kernels(code):
    """Whether a CompiledFxGraph is Python code, whose kernels are launched one by one.

    Otherwise it calls C++ code (``cpp_wrapper``) or CUDA graphs.
    """
    if _python is None:
        return False
    options = getattr(code, "fx_kwargs", None) or {}
    return not options.get("cpp_wrapper", True) and not options.get("cudagraphs", True)


def call(function, code, *args, **kwargs):
    """Calls compiled code that launches its kernels one by one."""
    library = lms._library
    wanted, begun = ctypes.c_int(), ctypes.c_int()
    storages = ()
    try:
        lms._check(library.lms_begin_compiled(ctypes.byref(wanted), ctypes.byref(begun)))
        outputs = function(code, *args, **kwargs)
        if wanted.value:
            storages = [s for s in lms._storages_in(outputs) if s.device.type == "cuda"]
        return outputs
    finally:
        if begun.value:
            addresses = (ctypes.c_void_p * len(storages))(*[s._cdata for s in storages])
            lms._check(library.lms_end_compiled(addresses, len(storages)))
