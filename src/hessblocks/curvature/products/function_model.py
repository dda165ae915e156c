"""Take a function (params, inputs) for a model, as with `torch.func`: its parameters are handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.errors import ArgumentError

Params = Mapping[str, Float[Tensor, "..."]] | Sequence[Float[Tensor, "..."]]
"""By name, or in order, where their names are 0, 1, …"""


class FunctionModel(nn.Module):
    """Hold the parameters of a function, and call it with them.

    The memory of the tensors is shared, so that what is written into them is seen.
    """

    def __init__(self, function: Callable[..., Any], params: Params) -> None:
        """Register each tensor under its name; dots make modules, as in `named_parameters`.

        Raises:
            ArgumentError: something else than a tensor of floating-point numbers, or a name that a
                module cannot have.
        """
        super().__init__()
        self._function, self._named = function, isinstance(params, Mapping)
        named = params if isinstance(params, Mapping) else dict(enumerate(params))
        self._names = [str(name) for name in named]
        made: dict[int, nn.Parameter] = {}  # a tensor that stands twice is one parameter
        for name, tensor in zip(self._names, named.values(), strict=True):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ArgumentError(f"params: expected tensors of real numbers, {name!r} is {kind}")
            self._register(name, made.setdefault(id(tensor), _parameter(tensor)))

    def _register(self, name: str, parameter: nn.Parameter) -> None:
        *path, leaf = name.split(".")
        owner: nn.Module = self
        try:
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(leaf, parameter)
        except KeyError as error:
            raise ArgumentError(
                f"params: {name!r} cannot be a parameter's name ({error.args[0]}); choose another"
            ) from error

    def forward(self, inputs: Any) -> Any:
        """Call the function with the parameters, named or in a list as they were given."""
        found = {name: attrgetter(name)(self) for name in self._names}
        return self._function(found if self._named else list(found.values()), inputs)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach())


def as_module(model: nn.Module | Callable[..., Any], params: Params | None) -> nn.Module:
    """Take a module as it is, and a function with its parameters.

    Args:
        model: either.
        params: of the function; None for a module.

    Returns:
        A module.

    Raises:
        ArgumentError: neither, a function without parameters, or a module with them.
    """
    if isinstance(model, nn.Module) and params is None:
        return model
    if isinstance(model, nn.Module) or not callable(model):
        given = f"{type(model).__name__}{'' if params is None else ' with params'}"
        raise ArgumentError(
            f"model: expected a module, or a function of (params, inputs) with params=, got {given}"
        )
    if not params:
        raise ArgumentError("params: a function needs a dict or list of the tensors that it takes")
    return FunctionModel(model, params)
