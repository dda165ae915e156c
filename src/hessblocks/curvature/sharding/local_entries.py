"""Map between whole vectors of a group and the entries that this process holds.

Letters: K vectors in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from hessblocks.curvature.groups import ParameterGroup, ParameterView
from hessblocks.curvature.sharding.exchange import Cut

Box = tuple[slice, ...]
"""Box of entries of a view: one slice per axis."""


@dataclass(frozen=True, kw_only=True)
class OwnEntries:
    """Entries of a group that this process holds."""

    whole: ParameterGroup
    """The group."""
    group: ParameterGroup
    """Group of this process's entries, in the coordinates of its rows."""
    boxes: tuple[tuple[int, Box | None], ...]
    """For each view of `group`: the index of its view in `whole`, and its box there; None if
    empty."""

    @classmethod
    def of(cls, group: ParameterGroup, cuts: Mapping[str, Cut]) -> OwnEntries:
        """Restrict a group to this process's rows.

        Args:
            group: group of the whole model.
            cuts: cut of each parameter, by name.

        Returns:
            The entries, with an empty view for each view without entries on this process.
        """
        views: list[ParameterView] = []
        boxes: list[tuple[int, Box | None]] = []
        for number, view in enumerate(group.views):
            start, stop = cuts[view.parameter].bounds
            everything = tuple(slice(0, length) for length in view.shape)
            for box in _inside(view, everything, start, stop):
                views.append(_boxed(view, box, start))
                boxes.append((number, box))
            if not boxes or boxes[-1][0] != number:  # groups name the same parameters everywhere
                views.append(ParameterView(parameter=view.parameter, shape=(0,), stride=(1,)))
                boxes.append((number, None))
        found = ParameterGroup(
            name=group.name, role=group.role, layer=group.layer, views=tuple(views)
        )
        return cls(whole=group, group=found, boxes=tuple(boxes))

    def read(self, vectors: Float[Tensor, "K size"]) -> Float[Tensor, "K own"]:
        """Copy this process's entries from whole vectors."""
        own = vectors.new_empty(vectors.shape[0], self.group.size)
        for piece, place in self._pairs(own, vectors):
            piece.copy_(place)
        return own

    def together(self, own: Float[Tensor, "K own"]) -> Float[Tensor, "K size"]:
        """All-gather whole vectors from the entries of all processes."""
        vectors = own.new_zeros(own.shape[0], self.whole.size)
        for piece, place in self._pairs(own, vectors):
            place.copy_(piece)
        dist.all_reduce(vectors)
        return vectors

    def _pairs(self, own: Tensor, vectors: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pair each view of `own` with the same entries of `vectors`; skip empty views."""
        wholes = vectors.split([view.size for view in self.whole.views], dim=1)
        pieces = own.split([view.size for view in self.group.views], dim=1)
        for piece, (number, box) in zip(pieces, self.boxes, strict=True):
            if box is not None:
                place = wholes[number].unflatten(1, (*self.whole.views[number].shape, 1))
                place = place[(slice(None), *box)]
                yield piece.view(place.shape), place


def _inside(view: ParameterView, box: Box, start: int, stop: int) -> Iterator[Box]:
    """Split into boxes those entries of `box` that lie in `start` to `stop` of the parameter."""
    steps = [(s.stop - 1 - s.start) * step for s, step in zip(box, view.stride, strict=True)]
    first = _first(view, box)
    last = first + sum(steps)
    if not view.size or last < start or first >= stop:
        return
    if start <= first and last < stop:
        yield box
        return
    axis = max((a for a, step in enumerate(steps) if step), key=lambda a: view.stride[a])
    step, beside = view.stride[axis], last - first - steps[axis]
    low, high = box[axis].start, box[axis].stop
    begin = min(max(low + -((first - start) // step), low), high)
    end = max(min(low + (stop - 1 - beside - first) // step + 1, high), begin)
    if begin < end:
        yield (*box[:axis], slice(begin, end), *box[axis + 1 :])
    for index in (*range(low, begin), *range(end, high)):
        yield from _inside(
            view, (*box[:axis], slice(index, index + 1), *box[axis + 1 :]), start, stop
        )


def _boxed(view: ParameterView, box: Box, start: int) -> ParameterView:
    """Return a box as a view whose offset counts from entry `start` of the parameter."""
    return ParameterView(
        parameter=view.parameter,
        shape=tuple(s.stop - s.start for s in box),
        stride=view.stride,
        offset=_first(view, box) - start,
    )


def _first(view: ParameterView, box: Box) -> int:
    steps = zip(box, view.stride, strict=True)
    return view.offset + sum(int(s.start) * step for s, step in steps)
