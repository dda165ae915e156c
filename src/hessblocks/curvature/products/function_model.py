"""Take a function (params, inputs) for a model, as with `torch.func`."""

from collections.abc import Callable, Mapping, Sequence
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
        """Register each tensor under its name.

        Raises:
            ArgumentError: something else than a tensor of real numbers, or a name that is no text.
        """
        super().__init__()
        self._function, self._named = function, isinstance(params, Mapping)
        made: dict[int, nn.Parameter] = {}  # a tensor that stands twice is one parameter
        named = params if isinstance(params, Mapping) else {str(n): t for n, t in enumerate(params)}
        for name, tensor in named.items():
            real = isinstance(tensor, Tensor) and tensor.is_floating_point()
            if not real or not isinstance(name, str):
                raise ArgumentError(
                    f"params: expected tensors of real numbers by name, got {name!r}: "
                    f"{tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__}"
                )
            # not by `register_parameter`, which takes no dots
            self._parameters[name] = made.setdefault(id(tensor), _parameter(tensor))

    def get_submodule(self, target: str) -> nn.Module:
        """Return the owner of a parameter, whose name may hold dots."""
        return self

    def forward(self, inputs: Any) -> Any:
        """Call the function with the parameters, named or in a list as they were given."""
        found = dict(self._parameters)
        return self._function(found if self._named else list(found.values()), inputs)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach())


def as_module(model: nn.Module | Callable[..., Any], params: Params | None) -> nn.Module:
    """Take a module as it is, and a function with its parameters.

    Args:
        model: either.
        params: parameters of the function; None for a module.

    Returns:
        A module.

    Raises:
        ArgumentError: neither, a function without parameters, or a module with them.
    """
    if isinstance(model, nn.Module) and params is None:
        return model
    if isinstance(model, nn.Module) or not callable(model) or not params:
        raise ArgumentError(
            "model: expected a module, or a function of (params, inputs) with params=, a dict or "
            f"list of tensors; got {type(model).__name__} {'with' if params else 'without'} params"
        )
    return FunctionModel(model, params)
