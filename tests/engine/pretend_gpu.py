"""A GPU that is none: tensors that compute on the CPU but say that they are elsewhere.

An operation that mixes them with tensors of the CPU raises, as it would on a GPU, so that code for
a GPU can be run and held to its devices without one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
"""A device that torch knows on every machine, and the engine not at all."""
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_"}
_CROSSING = {"aten::_to_copy", "aten::copy_"}
"""Operations that may have tensors of both."""


class PretendTensor(Tensor):
    """Wraps a tensor of the CPU, `on_cpu`, whose memory it shares."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor) -> "PretendTensor":
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            on_cpu.shape,
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=DEVICE,
        )
        made.on_cpu = on_cpu
        return made

    def tolist(self) -> Any:
        """As a GPU's tensor gives it, by way of the CPU."""
        return self.on_cpu.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Constructors(TorchFunctionMode):
    """Numbers from Python become tensors without a dispatch of their own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") == DEVICE:
            return func(*args, **kwargs | {"device": "cpu"}).to(DEVICE)
        if func is Tensor.new_tensor and isinstance(args[0], PretendTensor):
            return torch.tensor(args[1], dtype=args[0].dtype).to(DEVICE)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            args = (args[0], _indices(args[1]), *args[2:])
        return func(*args, **kwargs)


def _indices(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_indices, index))
    return torch.tensor(index) if isinstance(index, list) else index


@contextmanager
def pretend_gpu() -> Iterator[torch.device]:
    """While in here, what is made on or moved to this device is a pretended tensor."""
    # Views of wrapped tensors cannot be made in inference mode.
    enter = patch.object(torch.inference_mode, "__enter__", lambda _: None)
    leave = patch.object(torch.inference_mode, "__exit__", lambda *_: None)
    with enter, leave, torch.no_grad(), _Mode(), _Constructors():  # type: ignore[no-untyped-call]
        yield DEVICE


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    # Indices may be on the CPU.
    held = (args[0], *args[2:]) if name in _INDEXING else args
    tensors = [x for x in tree_flatten((held, kwargs))[0] if isinstance(x, Tensor)]
    pretended = [x for x in tensors if isinstance(x, PretendTensor)]
    device = kwargs.get("device")
    there = bool(pretended) if device is None else torch.device(device) == DEVICE
    if pretended and name not in _CROSSING:
        for tensor in tensors:
            if tensor.dim() and not isinstance(tensor, PretendTensor):
                raise RuntimeError(f"{name}: tensors of the GPU and of the CPU")
    if device is not None:
        kwargs = kwargs | {"device": "cpu"}
    bare_args, bare_kwargs = tree_map(bare, (args, kwargs))
    result = func(*bare_args, **bare_kwargs)
    if name == "aten::_to_copy" and device is None:
        there = bool(pretended)
    if func._schema.is_mutable and tensors and result is not None:
        own = next((x for x in tensors if bare(x) is result), None)
        if own is not None:
            return own
    return tree_map(_wrapped if there else _same, result)


def bare(value: Any) -> Any:
    """What a value that may be a pretended tensor computes with."""
    return value.on_cpu if isinstance(value, PretendTensor) else value


def _wrapped(value: Any) -> Any:
    return PretendTensor(value) if type(value) is Tensor else value


def _same(value: Any) -> Any:
    return value
