"""How uneven the blocks of a chain are, on norms that are known."""

import math

import pytest

from hessblocks.storage.tables import Row
from hessblocks.studies.our_questions.simplification import (
    CHAIN,
    COMMON_SPREAD,
    STUDY,
    common_spreads,
)


def norm(variant: str, group: str, value: float, step: int = 0, part: str = "full") -> Row:
    return {
        "study": "simplification", "variant": variant, "seed": 0, "step": step, "part": part,
        "quantity": "frobenius_norm", "group": f"layers.0.{group}", "value": value,
    }  # fmt: skip


def shared(variant: str, ratio: float, step: int = 0) -> list[Row]:
    """Norms 1, ratio, ratio² of the matrices that all blocks have."""
    groups = ("attention.query", "mlp.in", "mlp.out")
    return [norm(variant, group, ratio**k, step) for k, group in enumerate(groups)]


def test_matrices_that_only_some_blocks_have_do_not_count() -> None:
    plain = shared("sas", 10.0)
    more = [*shared("pre-ln", 10.0), norm("pre-ln", "attention.value", 1e9)]
    found = common_spreads([*plain, *more], 0.0)
    assert found["sas"] == found["pre-ln"] == {0: pytest.approx(1.0)}  # decades 0, 1, 2


def test_other_parts_other_steps_and_zeros_do_not_count() -> None:
    others = [
        norm("sas", "mlp.in", 1e9, part="outer"),
        norm("sas", "mlp.in", 1e9, step=7),
        norm("sas", "mlp.in", 0.0),
    ]
    found = common_spreads([*shared("sas", 10.0), *others], 0.0)
    assert found["sas"][0] == pytest.approx(1.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_verdict_follows_the_order_of_the_losses(sign: int) -> None:
    """Blocks whose curvature is the more uneven the higher their loss, and the other way round."""
    rows: list[Row] = []
    for place, variant in enumerate(CHAIN):
        rows += shared(variant, 2.0 + place) + shared(variant, 2.0 + place, step=10)
        loss = 5.0 + sign * place
        rows.append(
            {
                "variant": variant,
                "seed": 0,
                "step": 10,
                "quantity": "validation_loss",
                "value": loss,
            }
        )
    summary = STUDY.summarise(rows)
    verdicts = {check.holds for check in summary.checks if "queries" in check.fact}
    assert verdicts == {sign > 0}
    table = [row for row in summary.tables["unevenness"] if row["quantity"] == COMMON_SPREAD]
    assert len(table) == 2 * len(CHAIN)
    assert math.isclose(float(str(table[0]["value"])), math.log10(2.0))
