"""The public face: every name is there, and importing the package stays light."""

import subprocess
import sys

import pytest

import hessblocks as hb


@pytest.mark.parametrize("name", hb.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(hb, name) is not None
    assert name in dir(hb)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'hesian'"):
        hb.hesian  # noqa: B018


def test_importing_the_package_loads_neither_figures_nor_training() -> None:
    script = "import hessblocks, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not {"matplotlib", "plotly"} & set(loaded.stdout.split())
