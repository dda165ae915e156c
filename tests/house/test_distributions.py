"""Both distributions are one release, and make's environment holds both."""

import re
import tomllib

from hessblocks import __version__
from tests.house.source import ROOT

TOP = ROOT.parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))


def test_both_distributions_have_one_version() -> None:
    studies = tomllib.loads((TOP / "experiments" / "pyproject.toml").read_text("utf-8"))["project"]
    assert studies["version"] == __version__
    assert studies["dependencies"] == [f"hessblocks=={__version__}", "joblib>=1.5"]
    assert studies["requires-python"] == PROJECT["project"]["requires-python"]


def test_make_installs_both_distributions() -> None:
    lines = (TOP / "Makefile").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if "pip install" in line and "--editable" in line)
    assert re.findall(r"--editable (\S+)", line) == ["'.[dev,docs]'", "./experiments"]
