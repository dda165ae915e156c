"""The powers that the theory states are the slopes that one measures."""

import pytest

from examples.block_dependence import GROWTH, Growth, Powers, measured_power

WEIGHTS = {
    "softmax": ("query", "key", "value", "projection"),
    "softmax, one matrix": ("query", "value", "projection"),
    "linear": ("query", "key", "value", "projection"),
}
ROWS = [(kind, growth) for kind, table in GROWTH.items() for growth in table]


def label(item: object) -> str:
    return f"{item.row}-{item.column}-{item.part}" if isinstance(item, Growth) else str(item)


@pytest.mark.parametrize(("kind", "growth"), ROWS, ids=label)
def test_powers_are_measured_slopes(kind: str, growth: Growth) -> None:
    for quantity in ("x", *WEIGHTS[kind]):
        measured, expected = measured_power(kind, growth, quantity), growth.power(quantity)
        if expected is None:
            assert measured is None
        else:
            assert measured == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("kind", "growth"), ROWS, ids=label)
def test_moments_and_vectors_account_for_the_powers_of_the_input(kind: str, growth: Growth) -> None:
    """Each query or key index brings one x besides the moments, whose own powers are known."""
    first = 3 if kind == "linear" else 1
    for term in growth.terms:
        indices = sum(name in ("query", "key", "query_key") for name in (growth.row, growth.column))
        powers = zip((first, 2, 3), ("first", "second", "third"), strict=True)
        moments = sum(power * term.get(moment, 0) for power, moment in powers)
        assert term["x"] == moments + _vectors(growth, term, indices)


def _vectors(growth: Growth, term: Powers, indices: int) -> int:
    """x or q once for each query or key; the term of the product W_Q W_Kᵀ has it once only."""
    hollow = {growth.row, growth.column} == {"query", "key"} and growth.part == "functional"
    return 1 if hollow and "second" in term else indices


def test_every_block_is_there_once_with_both_parts() -> None:
    for table in GROWTH.values():
        parts = {
            part: [(growth.row, growth.column) for growth in table if growth.part == part]
            for part in ("outer", "functional")
        }
        assert len(set(parts["outer"])) == len(parts["outer"])
        assert sorted(parts["outer"]) == sorted(parts["functional"])
