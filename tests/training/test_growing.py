"""Operations of an update; comparisons that grow."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hessblocks.data.corpus import Corpus
from hessblocks.errors import ArgumentError
from hessblocks.progress import Progress
from hessblocks.storage.tables import read_results
from hessblocks.training import preparation
from hessblocks.training.comparison import compare
from hessblocks.training.preparation import build_model
from hessblocks.training.recorder import update_flops
from tests.training.helpers import COMPARISON, MODEL, TRAINING, complete, numbers, unsealed

UNMAPPED = replace(COMPARISON, curvature=None)


def unmapped(folder: Path) -> tuple[list[Any], list[Any]]:
    """The numbers of a comparison without those of its maps."""
    losses, rows = numbers(folder)
    return losses, [row for row in rows if row.quantity != "frobenius_norm"]


@pytest.mark.parametrize("preset", ["pre-ln", "sas", "sas-p-no-norm", "modern"])
def test_operations_are_those_of_a_model_that_computes(corpus: Corpus, preset: str) -> None:
    settings = replace(COMPARISON, model=MODEL, presets=(preset,)).runs()[0]
    model = build_model(MODEL, preset, corpus.vocab_size, seed=0)
    model.set_attn_implementation("eager")
    tokens = torch.zeros(TRAINING.batch_size, MODEL.context, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens).loss.backward()
    assert update_flops(settings, corpus.vocab_size) == counter.get_total_flops()


def test_operations_follow_the_rule_of_six(corpus: Corpus) -> None:
    """6 a weight and token, and 12 · context · width a layer and token for scores and mix."""
    settings = replace(COMPARISON, model=MODEL, presets=("pre-ln",)).runs()[0]
    layer = 4 * MODEL.width**2 + 8 * MODEL.width**2
    weights = MODEL.depth * layer + MODEL.width * corpus.vocab_size
    token = 6 * weights + 12 * MODEL.depth * MODEL.context * MODEL.width
    tokens = TRAINING.batch_size * MODEL.context
    assert update_flops(settings, corpus.vocab_size) == token * tokens


def test_slots_may_be_a_list(corpus: Corpus) -> None:
    settings = replace(COMPARISON, model=MODEL, presets=("pre-ln",)).runs()[0]
    listed = replace(settings, model=replace(MODEL, slots=["attention.query.init=zeros"]))
    assert update_flops(listed, corpus.vocab_size) == update_flops(settings, corpus.vocab_size)


@pytest.mark.slow
def test_a_finished_comparison_takes_more_presets_and_seeds(
    corpus: Corpus, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    complete(corpus, out, replace(UNMAPPED, presets=("sas-p",)))
    before = (out / "runs" / "sas-p-seed0" / "results.csv").read_bytes()
    complete(corpus, out, UNMAPPED)
    assert numbers(out) == unmapped(undisturbed)
    assert (out / "runs" / "sas-p-seed0" / "results.csv").read_bytes() == before
    complete(corpus, out, replace(UNMAPPED, seeds=(0, 1)))
    assert json.loads((out / "config.json").read_text())["seeds"] == [0, 1]
    assert {(row.preset, row.seed) for row in read_results(out / "results.csv")} == {
        (preset, seed) for preset in COMPARISON.presets for seed in (0, 1)
    }


def test_a_folder_of_an_earlier_version_is_refused_and_stays(
    corpus: Corpus, undisturbed: Path, tmp_path: Path
) -> None:
    """A configuration without what could not be chosen then is one with other settings."""
    out = unsealed(Path(shutil.copytree(undisturbed, tmp_path / "out")))
    for path in [out / "config.json", *out.glob("runs/*/config.json")]:
        config = json.loads(path.read_text())
        del config["observation"]
        path.write_text(json.dumps(config))
    before = numbers(out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ArgumentError, match=r"holds a run with other settings .* was None"):
            compare(COMPARISON, corpus, out, Progress())
    assert numbers(out) == before


def test_a_block_is_parsed_once_and_built_three_times_at_most(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, built = [], []
    for name, calls in (("block_of", parsed), ("build", built)):
        real = getattr(preparation, name)

        def counted(*given: Any, real: Any = real, calls: Any = calls, **named: Any) -> Any:
            calls.append(given)
            return real(*given, **named)

        monkeypatch.setattr(preparation, name, counted)
    preparation.blocks_of.cache_clear()
    preparation._outline.cache_clear()
    complete(corpus, tmp_path, COMPARISON)
    presets, seeds = len(COMPARISON.presets), len(COMPARISON.seeds)
    assert len(parsed) == presets
    assert len(built) <= presets * (1 + 2 * seeds) + 2  # of the first block, to tell the cost
