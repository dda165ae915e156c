"""How much of a sharded model is whole at once: entries of gathered weights that are alive."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

from hessblocks.curvature.sharding import exchange


class Resident:
    """Entries of gathered weights that are alive at once; `peak` is the largest sum.

    Directions, which are gathered in the same way, are not counted: they are vectors.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        self.now = self.peak = 0
        self._alive: set[int] = set()
        self._directions = False

    @contextmanager
    def counted(self) -> Iterator[Resident]:
        """Count gathered tensors, and the copies into which a message of several is split."""
        gather, apart = dist.all_gather_into_tensor, exchange._taken_apart
        derivative = exchange.Scatter.backward

        def gathering(into: Tensor, own: Tensor) -> None:
            time.sleep(
                0.005
            )  # gloo's thread lets go of what it gathered last a moment after it is done
            gather(into, own)
            self._count(into)

        def taking(*given: Any) -> list[Tensor]:
            found = apart(*given)
            for tensor in found:
                self._count(tensor)
            return found

        def of_directions(ctx: Any, *directions: Tensor) -> Any:
            self._directions = True
            found = derivative(ctx, *directions)
            self._directions = False
            return found

        with (
            patch.object(dist, "all_gather_into_tensor", gathering),
            patch.object(exchange, "_taken_apart", taking),
            patch.object(exchange.Scatter, "backward", of_directions),
        ):
            yield self

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if self._directions or place in self._alive:
            return
        size = storage.nbytes() // tensor.element_size()
        self._alive.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, place, size)

    def _freed(self, place: int, size: int) -> None:
        self._alive.discard(place)
        self.now -= size
