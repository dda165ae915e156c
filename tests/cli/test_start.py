"""Help, version and wrong options answer at once: nothing heavy is imported for them."""

import json
import subprocess
import sys
from typing import Any

import pytest

from hessblocks import __version__

HEAVY = {"torch", "transformers", "jaxtyping", "matplotlib", "numpy", "scipy"}
MODULES = 400
"""Half a second of imports at some 335 modules, of which two thirds are the option parser's."""
SLOW = pytest.mark.slow
"""Each answer is a process of its own: one of each kind is paid every day."""
SCRIPT = """
import json, os, sys
os.getloadavg = lambda: (float(os.environ.get("LOAD", "9e9")), 0.0, 0.0)
from hessblocks.cli import main
status = main(sys.argv[1:])
modules = len(sys.modules)
waiting = os.environ.get("OMP_WAIT_POLICY")
loaded = sorted({name.partition(".")[0] for name in sys.modules})
from hessblocks import settings
pair = settings.CurvatureInspection, settings.PricingSettings
panels = [kind.__name__ for kind in pair if kind.__subclasses__()]
told = {"status": status, "loaded": loaded, "modules": modules, "waiting": waiting}
told |= {"panels": panels}
print(json.dumps(told), file=sys.stderr)
"""


def answer(*words: str) -> tuple[dict[str, Any], str, str]:
    """What was loaded, and both outputs, of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True
    )
    errors, _, told = done.stderr.strip().rpartition("\n")
    return json.loads(told), done.stdout, errors


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--help"], 0),
        pytest.param(["--version"], 0, marks=SLOW),
        (["train", "--help"], 0),
        (["finetune", "m", "--data", "rows.csv"], 2),
        pytest.param(["curvature", "--help"], 0, marks=SLOW),
        pytest.param(["train", "sas", "--nonsense"], 2, marks=SLOW),
        pytest.param(["compare", "--steps", "many"], 2, marks=SLOW),
        (["compare", "--optimiser", "adma"], 2),
        pytest.param(["train"], 2, marks=SLOW),
        (["train", "sas", "--data", "/nope/x"], 2),
        pytest.param(["compare", "--data", "/nope/x"], 2, marks=SLOW),
        (["curvature", "preset:sas", "--data", "/nope/x"], 2),
        pytest.param(["signal", "preset:sas", "--data", "nope.txt"], 2, marks=SLOW),
        (["trian"], 2),
    ],
    ids=str,
)
def test_an_answer_without_work_loads_nothing_heavy(words: list[str], status: int) -> None:
    told, _, _ = answer(*words)
    assert told["status"] == status
    assert not HEAVY & set(told["loaded"])
    assert told["waiting"] == "passive"  # before torch, whose threads read it once
    assert told["modules"] < MODULES
    read = ["CurvatureInspection"] * (words[0] == "curvature")
    assert told["panels"] == read  # options of the command alone


def test_threads_spin_while_they_wait_if_the_machine_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOAD", "0")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert answer("trian")[0]["waiting"] is None


def test_the_list_of_blocks_needs_torch_alone() -> None:
    script = SCRIPT.replace('.partition(".")[0]', "")
    done = subprocess.run(
        [sys.executable, "-c", script, "presets", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = json.loads(done.stderr.strip().rpartition("\n")[2])["loaded"]
    assert "torch" in loaded
    assert not {"transformers", "scipy", "torch._dynamo", "sympy"} & {*loaded}


def test_the_version_is_printed() -> None:
    assert answer("--version")[1] == f"hessblocks {__version__}\n"


def test_settings_need_the_standard_library_alone() -> None:
    script = (
        "import hessblocks.settings, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    own = set(loaded.stdout.split()) - set(sys.stdlib_module_names)
    own -= {"lazy_loader"}  # one small file, which the root needs for its public names
    assert not {name for name in own if not name.startswith(("_", "hessblocks"))}
