"""The public face: every name is there, and importing the package stays light."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hessblocks as hb


def test_every_public_name_can_be_had() -> None:
    assert [name for name in hb.__all__ if getattr(hb, name, None) is None] == []
    assert set(hb.__all__) <= set(dir(hb))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No hessblocks attribute hesian"):
        hb.hesian  # noqa: B018


def test_every_public_name_stands_once_and_packages_are_there_too() -> None:
    assert len(hb.__all__) == len(set(hb.__all__)) > 25
    assert hb.curvature.Hessian is hb.Hessian
    assert "measure_curvature" in hb.__all__


ROOMS = ("data", "drawing", "figures", "inspection", "report", "training")
FOR_COMMANDS = {"claimed"}
"""Exported for the command line alone."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_file_or_folder_may_be_a_string(room: str) -> None:
    functions = {
        name: found
        for name, found in inspect.getmembers(getattr(hb, room), inspect.isfunction)
        if name not in FOR_COMMANDS
    }
    picky = {
        name: parameter.name
        for name, function in functions.items()
        for parameter in inspect.signature(function).parameters.values()
        if parameter.annotation in ("Path", "Path | None", Path)
    }
    assert functions
    assert not picky


def run(script: str, *words: object) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_importing_the_package_loads_neither_figures_nor_training() -> None:
    script = "import hessblocks, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    assert not {"matplotlib", "torch", "transformers"} & set(run(script).split())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    hb.build("sas", depth=1, width=8, heads=2, vocab_size=20, context=8).save_pretrained(folder)
    return folder


ORDERS = {
    "ours first": "import hessblocks, transformers",
    "theirs first": "import transformers, hessblocks",
    "theirs loaded": "from transformers import AutoModelForCausalLM; "
    "import hessblocks, transformers",
    "half-way through their import": "import hessblocks, transformers.modeling_utils",
    "with their trainer": "import hessblocks; from transformers import Trainer; "
    "import transformers",
    "our models first": "import hessblocks.models, transformers",
}
OPENED = """
import sys
for name in ("AutoConfig", "AutoModelForCausalLM", "AutoModel"):
    print(type(getattr(transformers, name).from_pretrained(sys.argv[1])).__name__)
print(type(transformers.AutoConfig.for_model("hessblocks")).__name__)
"""


CLASSES = [
    "HessblocksConfig",
    "HessblocksForCausalLM",
    "HessblocksModel",
    "HessblocksConfig",
]


def test_auto_classes_open_a_saved_model_in_this_process(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", str(saved)])
    exec(ORDERS["ours first"] + OPENED, {})
    assert capsys.readouterr().out.split() == CLASSES


@pytest.mark.slow  # each order is a process that imports it all, seven seconds
@pytest.mark.parametrize("order", ORDERS)
def test_auto_classes_open_a_saved_model_in_each_order_of_imports(saved: Path, order: str) -> None:
    assert run(ORDERS[order] + OPENED, saved).split() == CLASSES
