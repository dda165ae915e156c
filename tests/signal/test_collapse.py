"""Where rank collapse begins."""

import pytest

from hessblocks.signal.propagation import rank_collapse


@pytest.mark.parametrize(
    ("similarities", "layer"),
    [
        ([], None),
        ([0.1, 0.2], None),
        ([0.1, 0.999, 1.0], 1),
        ([1.0, 0.5, 1.0], 2),
        ([1.0, 1.0], 0),
        ([1.0, 0.99], None),
        ([0.5, float("nan")], None),
    ],
)
def test_collapse_is_from_a_layer_on_to_the_end(
    similarities: list[float], layer: int | None
) -> None:
    assert rank_collapse(similarities) == layer


def test_the_threshold_is_the_users() -> None:
    assert rank_collapse([0.5, 0.7, 0.8], above=0.6) == 1
