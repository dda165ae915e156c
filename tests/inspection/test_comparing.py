"""Blocks compared from Python."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hessblocks as hb
from hessblocks.errors import ArgumentError
from hessblocks.progress import Progress
from hessblocks.report import write_report

TINY = {
    "depth": 1,
    "heads": 2,
    "context": 16,
    "vocab_size": 300,
    "steps": 3,
    "batch_size": 2,
    "evaluation_sequences": 4,
    "sample": hb.settings.CurvatureSettings(sequences=1, tokens=4, probes=4),
}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HESSBLOCKS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {k} of {k * k} says {k % 7}.\n" for k in range(3000)))
    return path


def test_blocks_of_the_user_are_compared_under_their_names(text: Path, tmp_path: Path) -> None:
    mine = hb.preset("sas", width=16, heads=2).replace(mlp_width=40)
    blocks = {"base": "pre-ln-zero", "mine": mine, "sas[mlp.gated=true]": "sas[mlp.gated=true]"}
    found = hb.compare(blocks, out=tmp_path / "out", data=text, learning_rate=0.01, **TINY)
    assert found.presets == tuple(blocks)
    (row,) = found.select("parameters", preset="mine")
    model = hb.build(mine, depth=1, vocab_size=300, context=16)
    assert row.value == sum(p.numel() for p in model.parameters())
    assert found.rates == dict.fromkeys(blocks, 0.01)


class Clock(Progress):
    """Keeps notes, and processor seconds of stages."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, frozenset[str]]] = []
        self.spent: Counter[str] = Counter()

    def note(self, text: str) -> None:
        self.notes.append((text, frozenset(self.spent)))

    @contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        start = time.process_time()
        with super().stage(name, detail, total):
            yield
        self.spent[name.partition(" ")[0]] += time.process_time() - start


def test_the_cost_is_told_before_and_curvature_can_be_left_out(text: Path, tmp_path: Path) -> None:
    sample = hb.settings.CurvatureSettings(sequences=8, tokens=16, probes=8)
    sizes = TINY | {"steps": 30, "depth": 2, "width": 64, "sample": sample}
    clock, names = Clock(), ["pre-ln", "sas"]
    hb.compare(names, out=tmp_path / "out", data=text, progress=clock, **sizes)
    ((told, before),) = [entry for entry in clock.notes if "runs: about" in entry[0]]
    assert before == {"plan"}
    seconds = re.findall(r"([\d.]+) s for (training|curvature)", told)
    assert [kind for _, kind in seconds] == ["training", "curvature"]
    for number, kind in seconds:
        assert clock.spent[kind] / 3 < float(number) < 3 * clock.spent[kind], (told, clock.spent)
    assert told.endswith("of processor time; --no-curvature leaves the last out")

    clock = Clock()
    hb.compare(names, out=tmp_path / "out", data=text, progress=clock, **sizes)
    assert not clock.notes  # nothing is left to do
    few = sizes | {"curvature": False, "steps": 3}
    found = hb.compare(names, out=tmp_path / "two", data=text, progress=clock, **few)
    assert "curvature" not in clock.spent
    assert not found.select("frobenius_norm")
    assert not found.missing
    page = write_report(tmp_path / "two").read_text()
    assert "Heterogeneity before" not in page


@pytest.mark.parametrize(
    ("blocks", "fields", "message"),
    [
        (["sas", "saas"], {}, "blocks: 'saas' is unknown; did you mean 'sas'"),
        (["sas"], {"stepps": 3}, "setting: 'stepps' is unknown; did you mean 'steps'"),
        (["sas"], {"steps": 2.5}, "--steps: expected a whole number, got 2.5"),
        (["sas"], {"steps": True}, "--steps: expected a whole number, got True"),
        (["sas"], {"batch_size": "3"}, "--batch-size: expected a whole number, got '3'"),
        (["sas"], {"bf16": "no"}, "--bf16: expected true or false, got 'no'"),
        (["sas"], {"tune": True, "learning_rate": 0.1}, "--tune: it searches the rates"),
        ({"a": hb.preset("sas", width=16)}, {"width": 32}, "width: a has a width of 16, got 32"),
        ({"a/b": hb.preset("sas", width=16)}, {}, "blocks: 'a/b' is not allowed as a name"),
        ({"sas": hb.preset("sas", width=16)}, {}, "blocks: 'sas' is not allowed as a name"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    blocks, fields, message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=message):
        hb.compare(blocks, out=tmp_path / "out", data=text, **TINY | fields)
    assert not (tmp_path / "out").exists()
