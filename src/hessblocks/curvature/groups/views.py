"""Parameter groups as strided views, which split a fused weight without a copy.

Letters: K vectors in a batch.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from hessblocks.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class ParameterView:
    """Strided view of one parameter's entries, with the arguments of `torch.as_strided`."""

    parameter: str
    """Name of the parameter in `model.named_parameters()`."""
    shape: tuple[int, ...]
    """Shape of the view."""
    stride: tuple[int, ...]
    """Strides, in entries of the flattened (row-major) parameter."""
    offset: int = 0
    """Index of the first entry in the flattened parameter."""

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """Index after the last entry in the flattened parameter."""
        if not self.size:
            return self.offset
        steps = zip(self.shape, self.stride, strict=True)
        return self.offset + sum((length - 1) * step for length, step in steps) + 1

    def read(self, tensors: Shaped[Tensor, "K ..."]) -> Shaped[Tensor, "K size"]:
        """Read the view's entries from (K, *parameter shape), as (K, size)."""
        return self._cut(tensors.contiguous()).reshape(tensors.shape[0], self.size)

    def write(self, tensors: Shaped[Tensor, "K ..."], values: Shaped[Tensor, "K size"]) -> None:
        """Write `values`, (K, size), to the view of contiguous (K, *parameter shape) `tensors`."""
        self._cut(tensors).copy_(values.reshape(values.shape[0], *self.shape))

    def positions(self) -> Int[Tensor, " size"]:
        """Return the entries' indices in the flattened parameter, (size,)."""
        places = torch.arange(self.offset, self.end)
        return places.as_strided(self.shape, self.stride).reshape(-1)

    def _cut(self, tensors: Tensor) -> Tensor:
        numel = math.prod(tensors.shape[1:])
        return tensors.as_strided(
            (tensors.shape[0], *self.shape),
            (numel, *self.stride),
            tensors.storage_offset() + self.offset,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ParameterGroup:
    """Named set of parameter entries; its vectors are the concatenation of the flattened views.

    Examples:
        >>> import hessblocks as hb
        >>> model = hb.build("sas-p", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> group = hb.parameter_groups(model)["layers.0.attention.query"]
        >>> group
        ParameterGroup(layers.0.attention.query, query, entries 256, parameters 1)
        >>> group.parameters
        ('model.layers.0.attention.query.weight',)
    """

    name: str
    """Name of the group, such as `layers.0.attention.query`."""
    role: str
    """embedding, query, key, value, projection, gain, mlp_in, mlp_out, router, norm, head or
    other."""
    layer: int | None
    """Layer counted from 0, or None outside the layers."""
    views: tuple[ParameterView, ...]
    """The entries; each view is flattened row by row."""

    def __repr__(self) -> str:
        """Name, role and size on one line."""
        size = f"entries {self.size:,}, parameters {len(self.parameters)}"
        return f"ParameterGroup({self.name}, {self.role}, {size})"

    @property
    def size(self) -> int:
        """Number of entries, the length of the group's vectors."""
        return sum(view.size for view in self.views)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters with entries in the group, each once."""
        return tuple(dict.fromkeys(view.parameter for view in self.views))

    def _by_view(self, vectors: Tensor) -> Iterator[tuple[ParameterView, Tensor]]:
        pieces = vectors.split([view.size for view in self.views], dim=1)
        return zip(self.views, pieces, strict=True)

    def collect(
        self,
        tensors: Mapping[str, Float[Tensor, "K ..."] | None],
        into: Float[Tensor, "K size"],
        *,
        add: bool = False,
    ) -> None:
        """Read the group's entries of `tensors`.

        Args:
            tensors: (K, *shape) by parameter name; None means zeros. Entries of missing parameters
                are not changed.
            into: (K, size), changed in place.
            add: whether to add to `into` instead of overwriting it.
        """
        for view, piece in self._by_view(into):
            if view.parameter not in tensors:
                continue
            tensor = tensors[view.parameter]
            if tensor is not None:
                entries = view.read(tensor)
                piece.add_(entries) if add else piece.copy_(entries)
            elif not add:
                piece.zero_()

    def whole(
        self, vectors: Float[Tensor, "K size"], like: Mapping[str, Float[Tensor, "..."]]
    ) -> dict[str, Float[Tensor, "K ..."]]:
        """Split vectors into views shaped as those parameters that are wholly in the group.

        The views share memory with the vectors. Parameters of another dtype or device are left out.

        Args:
            vectors: (K, size).
            like: the parameters themselves.

        Returns:
            (K, *shape) by parameter name.
        """
        by_name = {}
        for view, piece in self._by_view(vectors):
            parameter = like[view.parameter]
            alike = (parameter.dtype, parameter.device) == (vectors.dtype, vectors.device)
            if alike and view == whole(view.parameter, parameter):
                by_name[view.parameter] = piece.view(len(vectors), *parameter.shape)
        return by_name

    def scatter(
        self, vectors: Float[Tensor, "K size"], like: Mapping[str, Float[Tensor, "..."]]
    ) -> dict[str, Float[Tensor, "K ..."]]:
        """Expand vectors to whole parameters, with zeros outside the group.

        Args:
            vectors: (K, size).
            like: the parameters themselves, for shape, dtype and device.

        Returns:
            (K, *shape) by parameter name; tensors of parameters wholly in the group may share
            memory with `vectors`.
        """
        tensors: dict[str, Tensor] = {}
        for view, piece in self._by_view(vectors):
            parameter = like[view.parameter]
            shape = (vectors.shape[0], *parameter.shape)
            if view == whole(view.parameter, parameter):
                tensors[view.parameter] = piece.reshape(shape).to(parameter)
                continue
            if view.parameter not in tensors:
                tensors[view.parameter] = parameter.new_zeros(shape)
            view.write(tensors[view.parameter], piece)
        return tensors


def whole(name: str, parameter: Shaped[Tensor, "..."]) -> ParameterView:
    """Make the view of a whole parameter."""
    return _whole(name, tuple(parameter.shape))


@functools.lru_cache(maxsize=4096)
def _whole(name: str, shape: tuple[int, ...]) -> ParameterView:
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return ParameterView(parameter=name, shape=shape, stride=strides)


def misfit(group: ParameterGroup, entries: Mapping[str, int]) -> str | None:
    """Find a group's first parameter that is missing or too small in a model; None if all fit."""
    reached = ((view.parameter, view.end) for view in group.views)
    return next((name for name, end in reached if end > entries.get(name, -1)), None)


def check_disjoint(
    groups: Iterable[ParameterGroup], parameters: Mapping[str, Shaped[Tensor, "..."]]
) -> dict[str, Bool[Tensor, " entries"]]:
    """Check that no entry belongs to two groups.

    Returns:
        Mask of the entries in a group, by parameter name.

    Raises:
        ArgumentError: an entry belongs to two groups; the message names group and parameter.
    """
    owned = {name: torch.zeros(p.numel(), dtype=torch.bool) for name, p in parameters.items()}
    for group in groups:
        for view in group.views:
            mine = owned[view.parameter].as_strided(view.shape, view.stride, view.offset)
            if mine.any():
                raise ArgumentError(
                    f"groups: {group.name!r} shares entries of {view.parameter!r} with an earlier "
                    "group"
                )
            mine.fill_(True)
    return owned


def overlap(groups: Iterable[ParameterGroup]) -> bool:
    """Tell whether any entry belongs to two groups; needs a byte per entry of one parameter."""
    views: dict[str, list[ParameterView]] = {}
    for view in (view for group in groups for view in group.views):
        views.setdefault(view.parameter, []).append(view)
    for several in (shared for shared in views.values() if len(shared) > 1):
        owners = torch.zeros(max(view.end for view in several), dtype=torch.uint8)
        for view in several:
            owners.as_strided(view.shape, view.stride, view.offset).add_(1)
        if owners.max() > 1:
            return True
    return False


def plain_name(name: str) -> str:
    """Return a parameter's name in `plain_model`, from its name in the wrapped model."""
    return re.sub(r"^(_orig_mod\.|module\.)+", "", name)


def plain_model(model: nn.Module, *, sharded: bool = False) -> nn.Module:
    """Unwrap DistributedDataParallel and torch.compile, which has no second derivative.

    Args:
        model: the caller's model.
        sharded: whether its parameters may be sharded over processes.

    Returns:
        The innermost module.

    Raises:
        ArgumentError: `model` is not a module, its parameters are sharded and may not be, or they
            are lazy and have no shape yet.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model: expected a module, got {type(model).__name__}")
    inner = model
    while isinstance(inner, DistributedDataParallel) or hasattr(inner, "_orig_mod"):
        name = "module" if isinstance(inner, DistributedDataParallel) else "_orig_mod"
        inner = inner.get_submodule(name)
    parameters = [*inner.named_parameters()]
    for name, tensor in (*parameters, *inner.named_buffers()):
        if is_lazy(tensor):
            raise ArgumentError(
                f"model: {name!r} has no shape yet, since a lazy module makes it in its first "
                "forward pass; call the model once on a batch"
            )
    cut = [name for name, parameter in parameters if isinstance(parameter, DTensor)]
    if cut and not sharded:
        raise ArgumentError(
            f"model: {cut[0]!r} and {len(cut) - 1} more parameters are sharded (FSDP2 or tensor "
            "parallel), and closed forms need them whole; "
            "load an unsharded copy: torch.distributed.checkpoint.state_dict.get_model_state_dict "
            "with StateDictOptions(full_state_dict=True)"
        )
    return inner
