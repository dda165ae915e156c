"""Headlines have frames and rest on decided facts, and quotes of papers are those of one file."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def headlines() -> SimpleNamespace:
    return SimpleNamespace(**run_path(str(ROOT / "docs" / "headlines.py")))


@pytest.fixture
def copied(tmp_path: Path, headlines: SimpleNamespace) -> Path:
    """What headlines and quotes rest on, copied."""
    told = headlines.read()
    quoted = (ROOT / "docs" / "published.toml").read_text(encoding="utf-8")
    files = {"README.md", "docs/headlines.toml", "docs/published.toml", *headlines.QUOTING}
    files |= {*re.findall(r'(?m)^in = "(.*)"', quoted)}
    for headline in (*told["studies"].values(), *told["readme"].values()):
        files |= {f"docs/results/{study}.json" for study, *_ in headline["rests_on"]}
        files |= {*headline.get("files", ())}
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def test_headlines_have_frames_and_rest_on_decided_facts(headlines: SimpleNamespace) -> None:
    assert headlines.faults() == []


def flip_a_fact(text: str) -> str:
    told = json.loads(text)
    (check,) = (c for c in told["checks"] if c["fact"] == "skipless trains slower than pre-ln")
    check["holds"] = None
    return json.dumps(told)


PLANTED: dict[str, tuple[str, Callable[[str], str], str]] = {
    "one fact flipped": (
        "docs/results/skipless.json",
        flip_a_fact,
        "studies.skipless: 'skipless trains slower than pre-ln' of skipless is not holds",
    ),
    "one quoted figure changed": (
        "docs/blocks.md",
        lambda text: text.replace("reports 1.09 and 1.16", "reports 1.16 and 1.20"),
        "docs/blocks.md: does not quote",
    ),
    "one quote added": (
        "docs/findings.md",
        lambda text: text + "\nThe paper reports a loss of 1.234 nats.\n",
        "docs/findings.md: quotes a figure that is not in published.toml",
    ),
    "one headline without its model": (
        "docs/headlines.toml",
        lambda text: re.sub(r'(\[readme.warm-up\]\n.*\nframe = \{ )model = "[^"]*", ', r"\1", text),
        "readme.warm-up: its frame has no model",
    ),
    "a finding without a headline": (
        "README.md",
        lambda text: text.replace(
            "- **Without a warm-up", "- **All is well.** So.\n- **Without a warm-up"
        ),
        "README.md: 'All is well.** So.' has no frame",
    ),
    "one seed": (
        "docs/results/ladder-first.json",
        lambda text: json.dumps(json.loads(text) | {"settings": {"seed": [0]}}),
        "studies.ladder-first: rests on one seed of ladder-first and does not say so",
    ),
    "an open question told as an answer": (
        "docs/headlines.toml",
        lambda text: text.replace(
            "No difference between fine-tuned blocks is decided", "All are alike"
        ),
        "studies.downstream: rests on undecided facts and does not say so",
    ),
    "a number that its page lost": (
        "docs/findings.md",
        lambda text: text.replace("[-0.04, +0.07]", "[+0.04, +0.07]"),
        "readme.evenness: none of its files has '+0.02 [-0.04, +0.07]'",
    ),
    "an interval across 0": (
        "docs/results/trial.json",
        lambda text: text.replace("[+0.068, +0.142]", "[-0.068, +0.142]"),
        "readme.behind: 'narrow: sas about matches pre-ln, zero queries at equal steps' of trial",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_is_found(planted: str, copied: Path, headlines: SimpleNamespace) -> None:
    assert headlines.faults(copied) == []
    name, change, fault = PLANTED[planted]
    path = copied / name
    text = path.read_text(encoding="utf-8")
    path.write_text(change(text), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != text
    assert any(found.startswith(fault) for found in headlines.faults(copied))


def test_each_finding_of_the_readme_has_interval_seeds_and_device_one_link_away(
    headlines: SimpleNamespace,
) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert headlines.readme_table() in page, "python docs/make_results.py writes it"
    assert "(docs/results.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    for name, headline in headlines.read()["readme"].items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {headline['says']} |"))
        assert re.search(r" ± |\[[-+]|\d to \d", row), name
        assert re.search(r"seed|draw", row), name
        assert re.search("CPU|GPU|H200", row), name


def test_the_script_ends_well_where_nothing_is_wrong() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "docs" / "headlines.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
