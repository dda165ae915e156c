"""The search of rates ends with the best inside its grid, whatever the losses."""

import math
from pathlib import Path

import pytest

from hessblocks.data.corpus import Corpus
from hessblocks.errors import RunError
from hessblocks.storage import read_tuning, write_tuning
from hessblocks.training.comparison import FARTHEST, MIDDLE, half_decade, next_rate, tuning_loss
from hessblocks.training.preparation import prepare
from tests.training.helpers import MODEL, TRAINING
from tests.training.test_run import run, settings


def search(loss, middle: int = -5) -> dict[float, float]:
    tried: dict[float, float] = {}
    while (rate := next_rate(tried, middle)) is not None:
        assert rate not in tried
        tried[rate] = loss(rate)
    return tried


@pytest.mark.parametrize("best", [-9, -6, -5, -4, -1])
def test_the_best_rate_lies_inside_the_grid(best: int) -> None:
    top = half_decade(best)
    tried = search(lambda rate: abs(math.log10(rate / top)))
    assert min(tried, key=tried.__getitem__) == top
    assert {half_decade(best - 1), half_decade(best + 1)} <= set(tried)
    assert len(tried) <= 3 + abs(best + 5)


def test_rates_at_which_runs_diverge_are_too_high() -> None:
    tried = search(lambda rate: math.inf if rate > 2e-4 else abs(math.log10(rate / 1e-4)))
    assert min(tried, key=tried.__getitem__) == 1e-4


def test_a_search_without_an_end_is_given_up() -> None:
    with pytest.raises(RunError, match=r"--tune: the best rate lies beyond 30; train longer"):
        search(lambda rate: -rate)
    assert half_decade(MIDDLE["adamw"] + FARTHEST) == 30


def test_a_stopped_search_goes_on(tmp_path: Path) -> None:
    whole = search(lambda rate: abs(math.log10(rate / 1e-2)))
    half = dict(list(whole.items())[:2])
    write_tuning(tmp_path, 1000, {"sas": half | {1.0: math.inf}})
    read = read_tuning(tmp_path)["sas"]
    assert read == half | {1.0: math.inf}
    while (rate := next_rate(read, -5)) is not None:
        read[rate] = whole[rate]
    assert read == whole | {1.0: math.inf}


def test_a_damaged_search_is_refused(tmp_path: Path) -> None:
    for text in ("[]", '{"blocks": {"sas": {"losses": [[-1, 2]]}}}', '{"blocks": {"sas": 1}}'):
        (tmp_path / "tuning.json").write_text(text)
        with pytest.raises(RunError, match="damaged"):
            read_tuning(tmp_path)


def test_a_tuning_run_ends_where_a_run_of_its_seed_does(corpus: Corpus, tmp_path: Path) -> None:
    chosen = settings("sas")
    _, rows = run(corpus, tmp_path / "out", chosen)
    (final,) = (row.value for row in rows if (row.quantity, row.stage) == ("loss", "final"))
    assert (chosen.model, chosen.training) == (MODEL, TRAINING)
    assert tuning_loss(chosen, prepare(chosen, corpus)) == final
