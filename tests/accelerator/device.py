"""A device that is none: torch's `privateuse1`, which computes on the CPU and refuses what lies
there.

Importing this registers it, once for the whole process and before its first backward pass, since
autograd starts a thread for each device then: tests of it run in a process of their own. What it
cannot show: the rounding of kernels, streams, pinned memory.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "slab"
ACROSS = ("aten::copy_", "aten::_to_copy")
"""Operations whose tensors may lie on two devices."""
RESIZING = ("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "randperm")
RESIZING += ("randperm.generator",)
"""Operations that torch makes of an empty tensor and its change of shape, which a tensor here
cannot do."""


class Elsewhere(Tensor):
    """A tensor on the device: the shape that torch sees, over a CPU tensor that only this class
    sees."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        self = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
            storage_size=held.untyped_storage().nbytes(),
        )
        self.held = held
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Says that `nn.Module.to` must keep a parameter's identity, which shared ones rely on."""
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Elsewhere:
        return Elsewhere(inner["held"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = self.detach().clone().requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copied._is_param = True  # type: ignore[attr-defined]
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as a tensor of the CPU."""
        return self.held.__reduce_ex__(protocol)

    def untyped_storage(self) -> Any:
        """That of the CPU tensor: what shares memory here shares it there."""
        return self.held.untyped_storage()

    def tolist(self) -> Any:
        """The entries as numbers, which torch refuses to subclasses."""
        return self.held.tolist()

    def data_ptr(self) -> int:
        """Where the entries are."""
        return self.held.data_ptr()


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on the tensors that the device's tensors hold; results are the device's."""
    name = func._schema.name
    given: dict[int, Elsewhere] = {}

    def inner(value: Any) -> Any:
        if isinstance(value, Elsewhere):
            given[id(value.held)] = value
            return value.held
        if isinstance(value, Tensor) and value.ndim and name not in ACROSS:
            raise RuntimeError(
                f"{name}: expected all tensors on {NAME}, got one of shape {tuple(value.shape)} on "
                f"{value.device}"
            )
        return type(value)(map(inner, value)) if isinstance(value, list | tuple) else value

    def outer(value: Any) -> Any:
        if isinstance(value, Tensor):
            return returned(value)
        return type(value)(map(outer, value)) if isinstance(value, list | tuple) else value

    def returned(tensor: Tensor) -> Elsewhere:
        known = given.get(id(tensor))
        if known is None:
            return Elsewhere(tensor)
        if known.shape != tensor.shape:  # squeeze_ and its kin: the shape that torch sees, too
            with torch._C._DisableTorchDispatch():
                func(known, *args[1:], **kwargs)
            assert known.shape == tensor.shape, name
        return known

    device = kwargs.get("device")
    here = {} if device is None else {"device": "cpu"}
    result = func(*map(inner, args), **{key: inner(v) for key, v in kwargs.items()} | here)
    goes = device is None or torch.device(device).type == NAME
    return outer(result) if goes else result


def made(func: Any, *args: Any, **kwargs: Any) -> Any:
    """What makes tensors out of none, `torch.empty` and its kin: all operations without kernel
    here."""
    return run(func, args, kwargs)


def copied(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """What `torch.tensor` calls below all dispatch to fill what it has made."""
    torch.ops.aten.copy_(getattr(target, "held", target), getattr(source, "held", source))
    return target


class Backend:
    """What torch and accelerate ask of `torch.slab`."""

    @staticmethod
    def is_available() -> bool:
        return True

    is_initialized = is_available

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Nothing: what is random is drawn on the CPU."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, Backend)
EVERY, SOME = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
EVERY.fallback(made, "PrivateUse1")
SOME.impl("_copy_from", copied, "PrivateUse1")
for name in RESIZING:
    packet, overload = name.split(".") if "." in name else (name, "default")
    operation = getattr(getattr(torch.ops.aten, packet), overload)
    SOME.impl(name, functools.partial(made, operation), "PrivateUse1")
