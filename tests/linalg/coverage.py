"""Whether error bars hold: the share of runs whose error is within 1, 2 and 3 of them."""

from torch import Tensor

LEVELS = {1: 0.60, 2: 0.90, 3: 0.98}
ROUNDING = 1e-9


def shares_within(values: Tensor, errors: Tensor, truth: Tensor | float) -> dict[int, float]:
    """For each width, the smallest share over quantities; runs stand in the first dimension.

    Rounding of the sums is forgiven: 1e-9 of the truth's own size.
    """
    deviations = (values - truth).abs()
    slack = ROUNDING * (abs(truth) if isinstance(truth, float) else truth.abs().max())
    return {
        width: float((deviations <= width * errors + slack).double().mean(0).min())
        for width in LEVELS
    }


def assert_covers(values: Tensor, errors: Tensor, truth: Tensor | float) -> None:
    shares = shares_within(values, errors, truth)
    assert all(shares[width] >= level for width, level in LEVELS.items()), shares
