r"""Runs a program with fake tensors, and tells a Recorder what its operators use."""

import warnings

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.utils._pytree import tree_flatten

from .cost import seconds_of
from .operator import FILLS, TRANSPARENT, Operators

# As RecordFunction calls what autograd runs.
_NODE = "autograd::engine::evaluate_function: "
_DEVICE = torch.ops.prim.device.default
_COPY = torch.ops.aten._to_copy.default
_META = torch.device("meta")
_ITEM = torch.ops.aten._local_scalar_dense.default
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
# Elements of tensors on the CPU that are computed: programs read their values.
_COMPUTED = 1 << 16


class FakeGpu(FakeTensorMode):
    r"""FakeTensorMode, with a recorder.

    Args:
        recorder (recorder.Recorder): is told what is used.
        gpu (cost.Gpu): says how long operators take.
    """

    def __init__(self, recorder, gpu):
        # Autograd wants a stream of each CUDA tensor's device. Without a GPU there is none: C++ is
        # told that the tensors are on the meta device, and Python that they are on the GPU.
        self.hides_device = not torch.cuda.is_available()
        super().__init__(allow_non_fake_inputs=True)
        self._recorder = recorder
        self._gpu = gpu
        self._operators = Operators()
        self._inside = 0
        self._units = 0
        self._asked = False

    @property
    def avoid_device_init(self):
        r"""bool: what FakeTensorMode finds out by asking torch.cuda, which is made to see a GPU."""
        return self.hides_device

    def dispatch(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is _DEVICE:
            return _META if self.hides_device else super().dispatch(func, types, args)
        if self.hides_device and kwargs.get("device") == _META:
            kwargs["device"] = torch.device("cuda", 0)
        if self._inside or func.namespace in ("prim", "profiler"):
            return super().dispatch(func, types, args, kwargs)
        self._inside += 1
        try:
            return self._run(func, types, args, kwargs)
        finally:
            self._inside -= 1

    def _run(self, func, types, args, kwargs):
        given = [value for value in tree_flatten((args, kwargs))[0] if _is_tensor(value)]
        on_gpu = any(map(_is_fake_cuda, given))
        # What has no fake implementation can run on the CPU, and must not run on a GPU.
        self.allow_fallback_kernels = not on_gpu
        if not any(isinstance(value, FakeTensor) for value in given):
            real = self._real(func, types, args, kwargs, given)
            if real is not NotImplemented:
                return real
        if func is _ITEM:
            return self._value(args[0])
        if torch.Tag.nondeterministic_seeded in func.tags and func._schema.name.endswith("_"):
            result = args[0]  # without a generator, which a missing GPU does not have
        elif self.hides_device and func is _COPY and not isinstance(args[0], FakeTensor):
            result = self._sent(args[0], types, kwargs)
        elif on_gpu and func._schema.is_mutable and not func._schema.returns:
            result = None  # as of fused optimizers, not all of which have a fake implementation
        else:
            result = self._fake(func, types, args, kwargs)
        self._record(func, args, kwargs, given, result)
        return result

    def _fake(self, func, types, args, kwargs):
        try:
            return super().dispatch(func, types, args, kwargs)
        except UnsupportedOperatorException as error:
            raise RuntimeError(
                "LMS: {} has no implementation for fake tensors; record this program on a GPU or "
                "on the simulated device".format(func._schema.name)
            ) from error
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise RuntimeError(
                "LMS: {} needs the values of its tensors, and fake tensors have none; record this "
                "program on a GPU or on the simulated device".format(func._schema.name)
            ) from error

    def _sent(self, tensor, types, kwargs):
        """A copy of a real tensor. Old releases would also copy its values to the missing GPU."""
        return self._fake(
            torch.ops.aten.empty_strided.default,
            types,
            (tensor.size(), tensor.contiguous().stride()),
            {"dtype": kwargs.get("dtype") or tensor.dtype, "device": kwargs["device"]},
        )

    # ---- what is on the CPU --------------------------------------------------------------------

    def _real(self, func, types, args, kwargs, given):
        """The result of an operator on small tensors of the CPU, whose values programs read."""
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != "cpu":
            return NotImplemented
        if any(value.device.type != "cpu" for value in given):
            return NotImplemented
        if func in _LIFTS and given and given[0].numel() <= _COMPUTED:
            return args[0]
        if not given:
            fake = super().dispatch(func, types, args, kwargs)
            made = [value for value in tree_flatten(fake)[0] if _is_tensor(value)]
            if not made or any(
                value.device.type != "cpu" or value.numel() > _COMPUTED for value in made
            ):
                return fake
        with unset_fake_temporarily():
            return func(*args, **kwargs)

    def _value(self, tensor):
        if not self._asked:
            self._asked = True
            warnings.warn(
                "LMS: the program reads the value of a fake tensor, as with .item(); it gets 0",
                stacklevel=2,
            )
        return _zero(tensor)

    # ---- what is on the GPU --------------------------------------------------------------------

    def _record(self, func, args, kwargs, given, result):
        operator = self._operators[func]
        recorder = self._recorder
        made = [value for value in tree_flatten(result)[0] if _is_tensor(value)]
        used = [value for value in given + made if _is_fake_cuda(value)]
        if not used:
            return
        if any(value.fake_device.index for value in used):
            raise RuntimeError(
                "LMS: fake tensors are recorded of one GPU, cuda:0, and this program uses others"
            )
        node = torch._C._current_autograd_node()
        # Operators of a pass of its own, as that of activation checkpointing, run in a node, too.
        in_node = node is not None and not torch.is_grad_enabled()
        if in_node:
            recorder.unit(_NODE + node.name(), self._key(node))
        else:
            recorder.unit(operator.name)
        if in_node or operator.kind not in (TRANSPARENT, FILLS):
            for value, write in self._inputs(operator, args, kwargs):
                recorder.use(value.untyped_storage(), write)
        from_gpu = any(map(_is_fake_cuda, given))
        for value in made:
            if not _is_fake_cuda(value):
                continue
            storage = value.untyped_storage()
            recorder.block(storage)
            if in_node or operator.kind != TRANSPARENT:
                recorder.use(storage, operator.kind == FILLS or not from_gpu)
        if operator.kind != TRANSPARENT:
            touched = used
            if operator.kind == FILLS:  # it reads shapes only
                touched = [value for value in made if _is_fake_cuda(value)]
            bytes_used = sum(value.numel() * value.element_size() for value in touched)
            recorder.spend(seconds_of(self._gpu, func, args, kwargs, result, bytes_used))

    def _key(self, node):
        """A number for an autograd node, which lives no longer than the node."""
        key = node.metadata.get("lms")
        if key is None:
            self._units += 1
            key = node.metadata["lms"] = -self._units
        return key

    @staticmethod
    def _inputs(operator, args, kwargs):
        """The fake tensors among the arguments, and whether they may be written."""
        for place, argument in enumerate(args):
            write = operator.writes is None or operator.writes[place]
            for value in tree_flatten(argument)[0]:
                if _is_fake_cuda(value):
                    yield value, write
        for name, argument in kwargs.items():
            for value in tree_flatten(argument)[0]:
                if _is_fake_cuda(value):
                    yield value, name == "out" or operator.writes is None


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _is_fake_cuda(value):
    return isinstance(value, FakeTensor) and value.fake_device.type == "cuda"


def _zero(tensor):
    if tensor.dtype == torch.bool:
        return False
    return 0.0 if tensor.dtype.is_floating_point else 0
