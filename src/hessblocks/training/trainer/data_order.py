"""The order of the data: a function of seed and position alone, so that it can go on anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import Sampler


class ShuffledPasses(Sampler[int]):
    """`count` indices: one shuffled pass over the data after another, each in its own order."""

    def __init__(self, data: Sized, count: int, seed: int) -> None:
        self.size = len(data)
        self.count = count
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        passes = (
            np.random.default_rng([self.seed, index]).permutation(self.size).tolist()
            for index in itertools.count()
        )
        return itertools.islice(itertools.chain.from_iterable(passes), self.count)


def spread(size: int, count: int) -> list[int]:
    """`count` indices spread evenly over `size` (all of them where there are fewer)."""
    count = min(size, count)
    return [index * size // count for index in range(count)]
