"""A name that went to the experiments says so, and what to install where they are not."""

import pytest

import hessblocks as hb
from hessblocks.errors import ArgumentError


@pytest.mark.parametrize("given", [{}, {"rule": "published"}, {"base": -1.0}])
def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch, given: dict[str, object]) -> None:
    monkeypatch.setattr("hessblocks.curvature.moved.STUDIES", "hessblocks_that_is_not_installed")
    with (
        pytest.warns(DeprecationWarning, match="one tuned rate trains as well"),
        pytest.raises(ArgumentError, match="run pip install hessblocks-studies"),
    ):
        hb.blockwise_learning_rates(None, **given)
