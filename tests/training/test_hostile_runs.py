"""A run folder that somebody else made: nothing in it is executed, nothing outside of it is met."""

import json
import os
import pickle
import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.errors import ArgumentError, HessblocksError
from hessblocks.progress import Progress
from hessblocks.storage import DamageWarning, held, load_results
from hessblocks.storage.files import refuse_links
from hessblocks.storage.manifest import MANIFEST, check_manifest
from hessblocks.training.comparison import compare
from hessblocks.training.folder import claimed
from tests.breadth import everyday
from tests.training.helpers import ALONE, COMPARISON, files, listed_anew, numbers

PICKLES = everyday(
    ["scaler.pt", "rng_state.pth", "optimizer.pt", "scheduler.pt", "pytorch_model.bin"],
    *("scaler.pt", "optimizer.pt", "pytorch_model.bin"),
)
"""The others are read as `optimizer.pt` is."""
RUN = Path("runs", "pre-ln-seed0")


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def go_on(corpus: Corpus, out: Path) -> None:
    """Whatever is said of damage on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(ALONE, corpus, out, Progress())


def plant(checkpoint: Path, name: str, marker: Path) -> None:
    (checkpoint / name).write_bytes(pickle.dumps(Bomb(marker)))
    if name == "pytorch_model.bin":
        (checkpoint / "model.safetensors").unlink()


@pytest.mark.parametrize("name", PICKLES)
def test_a_planted_pickle_is_not_opened_and_costs_no_digit(
    corpus: Corpus, alone: Path, stopped: Path, tmp_path: Path, name: str
) -> None:
    out, marker = tmp_path / "out", tmp_path / "executed"
    shutil.copytree(stopped, out)
    for checkpoint in (out / RUN / "checkpoints").glob("checkpoint-*"):
        plant(checkpoint, name, marker)
    go_on(corpus, out)
    assert not marker.exists()
    assert numbers(out) == numbers(alone)


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_that_the_manifest_lists_is_refused_in_a_sentence(
    corpus: Corpus, stopped: Path, tmp_path: Path, name: str
) -> None:
    """A `scaler.pt`, which no training here has, is left alone."""
    out, marker = tmp_path / "out", tmp_path / "executed"
    shutil.copytree(stopped, out)
    for checkpoint in (out / RUN / "checkpoints").glob("checkpoint-*"):
        plant(checkpoint, name, marker)
        listed_anew(checkpoint)
    said = "checkpoint-8 holds something other than states of a run"
    expected = nullcontext() if name == "scaler.pt" else pytest.raises(HessblocksError, match=said)
    with expected:
        go_on(corpus, out)
    assert not marker.exists()


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_a_manifest_that_names_files_elsewhere_is_none(stopped: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-8"
    shutil.copytree(stopped / RUN / "checkpoints" / "checkpoint-8", checkpoint)
    listed_anew(checkpoint)
    listed = json.loads((checkpoint / MANIFEST).read_text())
    os.mkfifo(tmp_path / "pipe")  # to read it would never end
    listed["files"]["../pipe"] = "0" * 64
    (checkpoint / MANIFEST).write_text(json.dumps(listed))
    assert check_manifest(checkpoint)


def by_link(path: Path, outside: Path) -> None:
    """What stands at `path` stands outside, and a link in its place."""
    if path.exists():
        path.rename(outside)
    path.symlink_to(outside)


LINKED = [
    "config.json", "environment.json", "metrics.jsonl", "results.csv", ".hessblocks.lock",
    ".hessblocks.holder",
    "runs", "figures", "report.html", RUN, RUN / "config.json", RUN / "metrics.jsonl",
    RUN / "checkpoints",
    RUN / "checkpoints" / "checkpoint-8",
    RUN / "checkpoints" / "checkpoint-8" / "model.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("work", ["go on", "report"])
def test_a_link_in_a_run_folder_is_refused_and_not_followed(
    corpus: Corpus, stopped: Path, tmp_path: Path, work: str
) -> None:
    for number, name in enumerate(map(Path, LINKED)):
        top = tmp_path / str(number)
        shutil.copytree(stopped, top / "out")
        by_link(top / "out" / name, top / "outside")
        before = snapshot(top)
        with pytest.raises(ArgumentError, match=rf"{name.name} is a link; .*put a copy there"):
            go_on(corpus, top / "out") if work == "go on" else load_results(top / "out")
        assert snapshot(top) == before, name


def snapshot(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


def test_a_dangling_link_makes_no_file_outside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".hessblocks.holder").symlink_to(tmp_path / "made")
    with pytest.raises(ArgumentError, match="is a link"), held(out):
        pass
    assert not (tmp_path / "made").exists()


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ArgumentError, match="is not a plain file"):
        load_results(tmp_path)


def test_the_folder_itself_may_be_a_link(corpus: Corpus, alone: Path, tmp_path: Path) -> None:
    shutil.copytree(alone, tmp_path / "elsewhere")
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    compare(ALONE, corpus, tmp_path / "out", Progress())
    assert load_results(tmp_path / "out").measurements
    refuse_links(tmp_path / "absent")


@pytest.mark.filterwarnings(f"ignore::{DamageWarning.__module__}.DamageWarning")
def test_a_pickle_beside_the_weights_of_a_trained_model_is_not_opened(
    corpus: Corpus, undisturbed: Path, tmp_path: Path
) -> None:
    """Its last map is lost, so that the model has to be read again."""
    out, marker = tmp_path / "out", tmp_path / "executed"
    shutil.copytree(undisturbed, out)
    results = out / RUN / "results.csv"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(line for line in lines if ",final,frobenius_norm," not in line))
    plant(out / RUN / "model", "pytorch_model.bin", marker)
    with pytest.raises(HessblocksError, match="model"):
        compare(COMPARISON, corpus, out, Progress())
    assert not marker.exists()


def test_a_folder_of_another_command_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"command": "signal"}')
    config = {"command": "compare", "presets": ["sas"], "seed": 0}
    with (
        pytest.raises(ArgumentError, match="something other than a run of `hessblocks compare`"),
        claimed(tmp_path, config, growing=["presets"], free=["seed"]),
    ):
        pass


def test_a_refused_run_leaves_the_folder_to_the_corrected_one(tmp_path: Path) -> None:
    refused, corrected = ({"command": "price", "tokens": tokens} for tokens in (16, 64))
    with pytest.raises(ArgumentError, match="too few"), claimed(tmp_path, refused):
        raise ArgumentError("too few tokens")
    assert not [path for path in tmp_path.iterdir() if path.name[0] != "."]
    with claimed(tmp_path, corrected):
        (tmp_path / "draws.safetensors").touch()
    with pytest.raises(ArgumentError, match="too large"), claimed(tmp_path, corrected):
        raise ArgumentError("too large")
    with claimed(tmp_path, corrected):  # samples that were drawn are of these settings
        assert (tmp_path / "draws.safetensors").exists()
