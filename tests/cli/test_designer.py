"""A block designer's day: one changed block against a baseline at its best, in one command."""

import json
import random
import re
from pathlib import Path

import pytest

import hessblocks as hb
from hessblocks.report import write_report
from hessblocks.storage import load_results
from hessblocks.training.comparison import half_decade
from tests.cli.helpers import CURVATURE, Shell, sentence

BLOCKS = ("pre-ln-zero", "sas", "sas[mlp.gated=true]")
AVERAGED = "skipless[attention.shaping=none,attention.query.init=normal]"
"""Neither a skip around attention nor shaping: each layer averages the tokens."""
SIZES = (
    *("--depth", "2", "--width", "32", "--heads", "2", "--context", "16", "--vocab-size", "300"),
    *("--batch-size", "8", "--evaluate-every", "100", *CURVATURE),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences whose words come back: pairs of tokens do not tell them."""
    draw = random.Random(0)
    words = ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "theta")
    path = tmp_path_factory.mktemp("text") / "text.txt"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(3000):
            a, b = draw.sample(words, 2)
            file.write(f"let {a} be {b}; then {b} follows {a} and {a} meets {b}.\n")
    return path


@pytest.fixture(autouse=True)
def _blank(blank: None) -> None:
    """No test looks at pictures."""


def page(out: Path) -> str:
    return write_report(out).read_text(encoding="utf-8")


def text_of(told: str) -> str:
    return re.sub(r"<[^>]+>", " ", told)


def table(told: str) -> dict[str, dict[str, float]]:
    """Row of a page's table → its numbers by column."""
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(<td data-label.*?)</tr>', told)
    number = re.compile(r'<td data-label="([^"]+)">([\d,.]+)')
    return {
        name: {column: float(cell.replace(",", "")) for column, cell in number.findall(row)}
        for name, row in rows
    }


@pytest.mark.slow
def test_a_changed_block_is_compared_with_a_baseline_at_its_best(
    shell: Shell, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    asked = ("compare", "--presets", ",".join(BLOCKS), "--tune", "--data", text, *SIZES)
    outcome = shell(*asked, "--steps", 20, "--out", out)
    assert outcome.status == 0
    assert "tuning: 3 blocks, 3 to 5 rates each with one seed: 180 to 300 updates" in outcome.errors
    assert (
        len(re.findall(r"^.*: best rate [\d.]+, held-out loss [\d.]+$", outcome.errors, re.M)) == 3
    )
    lines = outcome.errors.splitlines()
    assert lines.index(next(one for one in lines if one.startswith("tuning: 3"))) < lines.index(
        next(one for one in lines if "rate 0.003" in one)
    )
    results = load_results(out)
    tuned = json.loads((out / "tuning.json").read_text())["blocks"]
    for name in BLOCKS:
        losses = dict(tuned[name]["losses"])
        best = tuned[name]["best"]
        place = next(k for k in range(-14, 4) if half_decade(k) == best)
        around = [losses[half_decade(k)] for k in (place - 1, place + 1)]
        assert all(loss is None or loss >= losses[best] for loss in around)
        run = json.loads((out / "runs" / f"{name}-seed0" / "config.json").read_text())
        assert run["training"]["learning_rate"] == results.rates[name] == best
    told = page(out)
    shown, rows = text_of(told), table(told)
    assert list(rows) == [*BLOCKS, "bigram table"]
    ends = {row.preset: row.loss for row in results.metrics if row.split == "validation"}
    for name in BLOCKS:
        own = rows[name]
        assert own["Learning rate"] == results.rates[name]
        assert own["Final loss (nats per token)"] == pytest.approx(ends[name], rel=5e-3)
        assert own["Final loss (nats per token)"] < own["Initial loss (nats per token)"]
        assert own["Tokens per second"] > 0
        assert min(own["Heterogeneity before"], own["Heterogeneity after"]) > 1
    assert rows["sas"]["Parameters"] < rows["sas[mlp.gated=true]"]["Parameters"]
    assert "Learning rates: the best of each block in half decades" in shown
    assert "bigram table" in shown
    before = (out / "tuning.json").read_bytes()
    assert shell(*asked, "--steps", 20, "--out", out).status == 0
    assert (out / "tuning.json").read_bytes() == before


@pytest.mark.slow
def test_a_block_that_averages_its_tokens_is_seen_below_the_table(
    shell: Shell, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    asked = ("--presets", f"pre-ln-zero,{AVERAGED}", "--learning-rate", "0.03", "--steps", 60)
    few = ("--curvature-sequences", 1, "--curvature-tokens", 2)
    outcome = shell("compare", *asked, "--data", text, *SIZES, *few, "--out", out)
    assert outcome.status == 0
    assert "Learning rates are not tuned: 0.03 for all blocks" in " ".join(outcome.output.split())
    shown = text_of(page(out))
    assert re.search(rf"{re.escape(AVERAGED)} ends above the bigram table \(\d\.\d+\)", shown)
    assert not re.search(r"pre-ln-zero (and|ends above the bigram)", shown)


def test_a_file_is_a_block_under_its_name(shell: Shell, text: Path, tmp_path: Path) -> None:
    block = hb.preset("sas-p", width=32, heads=2, mlp_width=48)
    (tmp_path / "mine.json").write_text(json.dumps(block.to_dict()))
    out, mine = tmp_path / "out", tmp_path / "mine.json"
    asked = ("train", f"{mine}[mlp.activation=gelu]", "--data", text, *SIZES[:12])
    assert shell(*asked, "--steps", 4, "--out", out).status == 0
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["preset"] == "mine[mlp.activation=gelu]"
    assert (config["block"]["mlp_width"], config["block"]["mlp"]["activation"]) == (48, "gelu")
    assert f"train &#39;{mine}[mlp.activation=gelu]&#39;" in (
        write_report(out).read_text(encoding="utf-8")
    )
    block = block.replace(mlp_width=64)
    mine.write_text(json.dumps(block.to_dict()))
    other = shell(*asked, "--steps", 4, "--out", out)
    assert other.status == 2
    assert "blocks.mine[mlp.activation=gelu].1.mlp_width is 64, was 48" in sentence(other)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sas[key_value_heads=1]"], "sas[key_value_heads=1]: key_value_heads: attention's value"),
        (["sas[mlp.gated"], "expected NAME[SLOT=VALUE,...], such as sas[mlp.gated=true], got"),
        (["sas[width=64]"], "width: is a size, which presets depend on"),
        (["OLD"], "is not a block that this version reads (field of block: 'colour' is unknown"),
        (["MINE,OTHER/mine.json"], "there are two blocks called 'mine'; rename"),
        (["MINE,pre-ln", "--width", "64"], "width: mine has a width of 32, got 64"),
        (["missing.json"], "missing.json is not a file; give one that exists."),
        (["sas", "--tune", "--learning-rate", "0.1"], "--tune: it searches the rates; leave"),
        (["sas,sas"], "--presets: sas was given twice; give each once."),
    ],
)
def test_what_is_not_a_comparison_is_refused_in_a_sentence(
    shell: Shell, text: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    block = hb.preset("pre-ln", width=32, heads=2).to_dict()
    (tmp_path / "other").mkdir()
    for name in ("mine.json", "other/mine.json"):
        (tmp_path / name).write_text(json.dumps(block))
    (tmp_path / "old.json").write_text(json.dumps(block | {"colour": "red"}))
    places = {"OLD": "old.json", "MINE": "mine.json", "OTHER": "other"}
    for word, name in places.items():
        words = [one.replace(word, str(tmp_path / name)) for one in words]
    outcome = shell("compare", "--presets", *words[:1], *SIZES, *words[1:], "--data", text)
    assert outcome.status == 2
    assert message in sentence(outcome)
