"""The powers that the theory states are the slopes that one measures."""

import itertools

import pytest

from examples.block_dependence import GROWTH, Growth, Powers, measured_power

WEIGHTS = {
    "softmax": ("query", "key", "value", "projection"),
    "softmax, one matrix": ("query", "value", "projection"),
    "linear": ("query", "key", "value", "projection"),
}
kinds = pytest.mark.parametrize("kind", GROWTH)


@kinds
def test_powers_are_measured_slopes(kind: str) -> None:
    for growth, quantity in itertools.product(GROWTH[kind], ("x", *WEIGHTS[kind])):
        measured, expected = measured_power(kind, growth, quantity), growth.power(quantity)
        if expected is None:
            assert measured is None, (growth, quantity)
        else:
            assert measured == pytest.approx(expected, abs=0.02), (growth, quantity)


@kinds
def test_moments_and_vectors_account_for_the_powers_of_the_input(kind: str) -> None:
    """Each query or key index brings one x besides the moments, whose own powers are known."""
    first = 3 if kind == "linear" else 1
    for growth in GROWTH[kind]:
        indices = sum(name in ("query", "key", "query_key") for name in (growth.row, growth.column))
        for term in growth.terms:
            powers = zip((first, 2, 3), ("first", "second", "third"), strict=True)
            moments = sum(power * term.get(moment, 0) for power, moment in powers)
            assert term["x"] == moments + _vectors(growth, term, indices), growth


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
