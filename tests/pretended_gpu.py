"""A pretended GPU: tensors that say `cuda:0` and keep their values on the CPU.

`pretend_gpu()` yields a `Gpu` that counts, between two calls of `reset`, what a real card would suffer from:

- `waits`: places where the host waits for the device (a value read, a boolean index, a copy that is not pinned, ...);
- `casts`: casts of the watched, frozen weights;
- `kernels`: operations that are not mere views.

Products of half numbers are computed in fp32 and rounded, because CPUs differ in which half instructions they have. An
operation on tensors of different devices is refused, as CUDA does; one on different dtypes is refused by PyTorch's own
kernels. Autocast follows the lists of CUDA's documentation, for calls from Python.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA, CPU, HALF = torch.device("cuda", 0), torch.device("cpu"), (torch.float16, torch.bfloat16)
aten: Any = torch.ops.aten

# On CUDA, the result of each of these has a size, or is a number, that the host must wait for.
WAITS = {
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.masked_scatter, aten.masked_scatter_,
    aten.masked_scatter_backward, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.equal, aten.is_nonzero,
    aten.bincount,
}  # fmt: skip
PRODUCTS = {
    aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.mv, aten.addmv, aten.dot, aten.convolution,
    aten.convolution_backward, aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
}  # fmt: skip
TO_HALF = {
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "addbmm", "baddbmm", "chain_matmul",
    "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention", "einsum", "prelu",
}  # fmt: skip
TO_FP32 = {
    "__pow__", "__rpow__", "acos", "asin", "cosh", "cosine_similarity", "cross_entropy", "cumprod", "cumsum", "dist",
    "erfinv", "exp", "expm1", "group_norm", "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2",
    "log_softmax", "mse_loss", "nll_loss", "norm", "normalize", "pdist", "pow", "prod", "reciprocal", "rsqrt", "sinh",
    "softmax", "softplus", "sum", "tan",
}  # fmt: skip
TO_WIDEST = {"addcdiv", "addcmul", "atan2", "cat", "cross", "dot", "index_put", "scatter_add", "stack", "tensordot"}
AUTOCAST = TO_HALF | TO_FP32 | TO_WIDEST
# On floats, CUDA refuses these under `torch.use_deterministic_algorithms(True)`, as its documentation says.
NOT_DETERMINISTIC = {
    aten.cumsum, aten.put, aten.put_, aten.histc, aten.kthvalue, aten.median, aten._adaptive_avg_pool2d_backward,
    aten.upsample_bilinear2d_backward, aten.upsample_bicubic2d_backward, aten.grid_sampler_2d_backward,
}  # fmt: skip


class GpuTensor(Tensor):
    values: Tensor  # on the CPU, of the same memory

    @staticmethod
    def __new__(cls, values: Tensor) -> "GpuTensor":
        values = values.detach()
        self = Tensor._make_subclass(cls, values, False, device_for_backend_keys=CUDA)
        self.values = values
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    is_cuda, is_cpu = property(lambda _: True), property(lambda _: False)  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"on cuda:0: {self.values!r}"

    def __deepcopy__(self, memo: dict[int, Any]) -> "GpuTensor":
        copy = GpuTensor(self.values.clone()).requires_grad_(self.requires_grad)
        copy._is_param = getattr(self, "_is_param", False)
        return memo.setdefault(id(self), copy)

    __torch_function__ = torch._C._disabled_torch_function_impl


class Gpu(TorchDispatchMode):
    """The device, and its counters."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.casts = self.kernels = 0
        self._frozen: set[int] = set()
        self._backward = -1  # the last backward pass with tensors of this device

    def reset(self) -> None:
        self.waits.clear()
        self.casts = self.kernels = 0

    def watch(self, model: nn.Module) -> None:
        """Casts of this model's weights are counted."""
        weights = [p.values for p in model.parameters() if isinstance(p, GpuTensor)]
        self._frozen |= {weight.untyped_storage().data_ptr() for weight in weights}

    def move(self, x: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        if isinstance(x, GpuTensor) and device.type == "cpu":
            self.waits["device to host"] += 1
            return x.values.clone()
        if isinstance(x, GpuTensor) or device.type == "cpu":
            return x
        if not (non_blocking and getattr(x, "_pinned", False)):
            self.waits["host to device, not pinned"] += 1
        return GpuTensor(x.detach().clone()).requires_grad_(x.requires_grad and x.is_leaf)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        packet, tensors = func.overloadpacket, _tensors(args, kwargs)
        here = [x for x in tensors if isinstance(x, GpuTensor)]
        device = kwargs.get("device")
        # Where a gradient is missing, PyTorch makes zeros, of the device that C++ knows.
        task = torch._C._current_graph_task_id()
        self._backward = task if here else self._backward
        backward = device is not None and task == self._backward != -1
        on_gpu = bool(here) or backward or (device is not None and device.type == "cuda")
        if packet is aten._to_copy and on_gpu and not here:  # to the host: see `_Calls`; there C++ says "cpu" for both
            x = self.move(tensors[0], device, kwargs.pop("non_blocking", False))
            return x if kwargs.get("dtype") in (None, x.dtype) else x.to(kwargs["dtype"])
        if not on_gpu:
            return func(*args, **kwargs)
        if device is not None:
            kwargs["device"] = CPU
        if packet in NOT_DETERMINISTIC and torch.are_deterministic_algorithms_enabled() and here[0].is_floating_point():
            raise RuntimeError(f"{packet} has no deterministic form: torch.use_deterministic_algorithms(True)")
        self._count(func, packet, args, tensors, here)
        outer = {id(x.values): x for x in here}
        args, kwargs = [_map(_values, x) for x in args], {name: _map(_values, x) for name, x in kwargs.items()}
        half = next((x.dtype for x in here if x.dtype in HALF), None) if packet in PRODUCTS else None
        out = func(*args, **kwargs) if half is None else _in_fp32(func, args, kwargs, half)
        return _map(lambda x: _wrap(x, outer) if isinstance(x, Tensor) else x, out)

    def _count(self, func: Any, packet: Any, args: Any, tensors: list[Tensor], here: list[GpuTensor]) -> None:
        self.kernels += not _is_view(func)
        if packet in WAITS or (packet is aten.repeat_interleave and func is not aten.repeat_interleave.self_int):
            self.waits[str(packet)] += 1
        if packet in (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index):
            for index in [index for index in args[1] if index is not None]:
                single = len(args) > 2 and args[2].numel() == 1  # then it is a masked_fill
                if index.dtype in (torch.bool, torch.uint8) and not single:
                    self.waits["boolean index"] += 1
                if not isinstance(index, GpuTensor):
                    self.waits["index from the host"] += 1
            tensors = [x for x in tensors if x.dim() and x.dtype not in (torch.long, torch.bool)]
        elif packet is aten.copy_ and len(here) == 1:
            self.waits["copy between host and device"] += 1
            return
        if packet is aten._to_copy and here[0].numel() > 1:
            self.casts += here[0].values.untyped_storage().data_ptr() in self._frozen
        if strangers := [x for x in tensors if x.dim() and not isinstance(x, GpuTensor)]:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} got one of {tuple(strangers[0].shape)} "
                "on cpu and others on cuda:0"
            )


class _Calls(TorchFunctionMode):
    """Calls from Python that PyTorch answers without an operation, because the memory is on the CPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in AUTOCAST and torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda") if name in TO_HALF else torch.float32
            if name in TO_WIDEST:
                dtypes = (x.dtype for x in _tensors(args, kwargs) if _casts(x))
                dtype = max(dtypes, key=lambda dtype: dtype.itemsize, default=dtype)
            args, kwargs = _map(lambda x: x.to(dtype) if _casts(x) else x, (args, kwargs))
        if func is Tensor.to:
            device, dtype, non_blocking, _ = _parse_to(*args[1:], **{k: v for k, v in kwargs.items() if k != "copy"})
            x = args[0] if device is None else self.gpu.move(args[0], device, non_blocking)
            return x if dtype is None or dtype is x.dtype else func(x, dtype)
        if func in (Tensor.cpu, Tensor.cuda):
            return self.gpu.move(args[0], CPU if func is Tensor.cpu else CUDA)
        if func is Tensor.pin_memory and not isinstance(args[0], GpuTensor):
            pinned = args[0].clone()
            pinned._pinned = True  # type: ignore[attr-defined]
            return pinned
        if func is Tensor.is_pinned:
            return getattr(args[0], "_pinned", False)
        if func is Tensor.tolist and isinstance(args[0], GpuTensor):
            return self.gpu.move(args[0], CPU).tolist()
        if name in ("numpy", "__array__") and args and isinstance(args[0], GpuTensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or CPU).type == "cuda":
            return self.gpu.move(func(*args, **{**kwargs, "device": None}), CUDA)
        if func is torch.nn.functional.one_hot and isinstance(args[0], GpuTensor):  # CUDA checks no bounds
            return (args[0][..., None] == torch.arange(args[1], device=CUDA)).long()
        if func is Tensor.new_tensor and isinstance(args[0], GpuTensor):
            return self.gpu.move(torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}), CUDA)
        return func(*args, **kwargs)


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """The function of each leaf of nested tuples, lists and dicts."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_map(function, part) for part in value])
    if kind is dict:
        return {name: _map(function, part) for name, part in value.items()}
    return function(value)


def _tensors(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The tensors among arguments, and in lists among them."""
    found = []
    for x in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, tuple | list):
            found += [part for part in x if isinstance(part, Tensor)]
    return found


_parse_to_cpp = torch._C._nn._parse_to


def _parse_to(*args: Any, **kwargs: Any) -> Any:
    other = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("other")
    device, *rest = _parse_to_cpp(*args, **kwargs)
    return (CUDA if isinstance(other, GpuTensor) else device, *rest)


def _values(x: Any) -> Any:
    return x.values if isinstance(x, GpuTensor) else x


def _wrap(x: Tensor, outer: dict[int, GpuTensor]) -> GpuTensor:
    return outer[id(x)] if id(x) in outer else GpuTensor(x)


def _casts(x: Any) -> bool:
    return isinstance(x, GpuTensor) and x.is_floating_point() and x.dtype is not torch.float64


@cache
def _is_view(func: Any) -> bool:
    """Whether an operation starts no kernel: its result is another look at its input, or empty memory."""
    aliases = [result.alias_info for result in func._schema.returns]
    return "empty" in func.name() or any(alias is not None and not alias.is_write for alias in aliases)


def _in_fp32(func: Any, args: Any, kwargs: Any, half: torch.dtype) -> Any:
    dtypes = {x.dtype for x in _tensors(args, kwargs) if x.is_floating_point()}
    attention = "scaled_dot_product" in func.name()
    if dtypes != {half} and not attention:
        raise RuntimeError(f"{func} got tensors of different dtypes: {dtypes}")
    args, kwargs = _map(lambda x: x.float() if isinstance(x, Tensor) and x.dtype is half else x, (args, kwargs))
    out = func(*args, **kwargs)
    if attention and not func.name().endswith("backward"):
        return out[0].to(half), out[1]  # the logarithms of sums are fp32 on a GPU too
    return _map(lambda x: x.to(half) if isinstance(x, Tensor) else x, out)


def _grouped(lists: Any, with_indices: bool = False) -> Any:
    grouped = torch._C._group_tensors_by_device_and_dtype(lists, with_indices)
    return {(CUDA, dtype): value for (_, dtype), value in grouped.items()}


@contextmanager
def pretend_gpu(capability: int = 8, memory: int = 24 * 2**30) -> Iterator[Gpu]:
    """Inside, `torch.cuda` has one card of this compute capability and memory."""
    gpu, card = Gpu(), SimpleNamespace(major=capability, minor=0, total_memory=memory, name="pretended")
    answers: dict[str, Any] = {
        "_lazy_init": lambda: None, "is_available": lambda: True,
        "device_count": lambda: 1, "current_device": lambda: 0,
        "get_device_capability": lambda *_: (capability, 0), "get_device_properties": lambda *_: card,
        "get_device_name": lambda *_: "pretended", "mem_get_info": lambda *_: (memory, memory),
        "synchronize": lambda *_: None, "manual_seed_all": lambda *_: None, "set_device": lambda *_: None,
        "max_memory_allocated": lambda *_: 0, "reset_peak_memory_stats": lambda *_: None, "empty_cache": lambda: None,
    }  # fmt: skip
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False))
        stack.enter_context(patch.object(torch._C._nn, "_parse_to", _parse_to))
        # Of functions made of many calls, such as multi-head attention, each call is seen, not the whole.
        stack.enter_context(patch("torch.nn.functional.has_torch_function", lambda _: False))
        optimizer: Any = torch.optim.Optimizer
        stack.enter_context(patch.object(optimizer, "_group_tensors_by_device_and_dtype", staticmethod(_grouped)))
        for name in (name for name in dir(optimizer) if name.endswith("_graph_capture_health_check")):
            stack.enter_context(patch.object(optimizer, name, lambda _: None))
        overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrite)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(gpu)
        stack.enter_context(_Calls(gpu))
        yield gpu
