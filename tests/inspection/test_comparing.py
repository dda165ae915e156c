"""Blocks compared from Python."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hessblocks as hb
from hessblocks.errors import ArgumentError, duration
from hessblocks.progress import Progress
from hessblocks.report import write_report
from hessblocks.training import comparison

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


class Notes(Progress):
    """Keeps notes, each with the stages before it."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, frozenset[str]]] = []
        self.spent: set[str] = set()

    def note(self, text: str) -> None:
        self.notes.append((text, frozenset(self.spent)))

    @contextmanager
    def stage(self, name: str, detail: str = "", total: int | None = None) -> Iterator[None]:
        with super().stage(name, detail, total):
            yield
        self.spent.add(name.partition(" ")[0])


def test_the_cost_is_told_before_and_curvature_can_be_left_out(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, names = Notes(), ["pre-ln", "sas"]
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "_unsaved", lambda *_: [{"tokens_per_second": 20.0}])
        patch.setattr(comparison, "map_seconds", lambda *_: 1.5)
        hb.compare(names, out=tmp_path / "out", data=text, progress=notes, **TINY)
    ((told, before),) = [entry for entry in notes.notes if "runs: about" in entry[0]]
    assert before == {"plan"}
    training = json.loads((tmp_path / "out" / "config.json").read_text())["training"]
    evaluations = 3 // training["evaluate_every"] + 2
    seconds = 2 * (3 * 2 + evaluations * 4 / 3) * 16 / 20
    assert f"2 runs: about {duration(seconds)} for training, " in told
    assert f"{duration(2 * 2 * 1.5)} for curvature before and after" in told
    assert re.search("of processor time; in all, start .* about .* s; --no-curvature leaves", told)

    notes = Notes()
    hb.compare(names, out=tmp_path / "out", data=text, progress=notes, **TINY)
    assert not notes.notes  # nothing is left to do
    few = TINY | {"curvature": False}
    found = hb.compare(names, out=tmp_path / "two", data=text, progress=notes, **few)
    ((told, _),) = notes.notes
    assert re.fullmatch(r"2 runs: about \S+ m?s for training of processor time; in all, .*", told)
    assert "curvature" not in notes.spent
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
