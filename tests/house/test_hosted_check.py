"""The hosted check and the hooks run what `make` runs, on every Python that the package names."""

import re
import tomllib

import yaml

from hessblocks import __version__
from tests.house.source import ROOT

TOP = ROOT.parents[1]
MAKE = (TOP / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_hosted_check_makes_check_on_every_python() -> None:
    flow = yaml.safe_load((TOP / ".github" / "workflows" / "check.yml").read_text("utf-8"))
    job = flow["jobs"]["check"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == named
    assert "make check PYTHON=python" in [step.get("run") for step in job["steps"]]


def test_the_hooks_are_those_of_make_lint_and_make_types() -> None:
    (local,) = yaml.safe_load((TOP / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    for hook in local["hooks"]:
        program, *words = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        command = " ".join([program.replace(".venv/bin", "$(BIN)"), *words[:1]])
        assert command in MAKE, command


def test_both_distributions_have_one_version() -> None:
    own = tomllib.loads((TOP / "experiments" / "pyproject.toml").read_text("utf-8"))["project"]
    assert own["version"] == __version__
    assert own["dependencies"] == [f"hessblocks=={__version__}", "joblib>=1.5"]
    assert own["requires-python"] == PROJECT["project"]["requires-python"]


def test_make_installs_both_distributions() -> None:
    (line,) = (line for line in MAKE.splitlines() if "pip install" in line and "--editable" in line)
    assert re.findall(r"--editable (\S+)", line) == ["'.[dev,docs]'", "./experiments"]
