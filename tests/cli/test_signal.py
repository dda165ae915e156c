"""`hessblocks signal`: tables, files, figures; rank collapse seen 64 layers deep; bad input."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel

import hessblocks as hb
from hessblocks.errors import RunError
from hessblocks.inspection import opening
from hessblocks.report.signal_figure import write_signal_figures
from hessblocks.settings.pretrained import InspectionSettings
from hessblocks.signal.propagation import propagate
from tests.cli.helpers import Shell, sentence

SMALL = ["--data", "random", "--width", "16", "--heads", "2", "--vocab-size", "64", "--tokens", "8",
    "--sequences", "2", "--depth", "3"]  # fmt: skip


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("blank")
def test_collapse_64_layers_deep_with_plain_attention_and_none_with_shaped(
    shell: Shell, tmp_path: Path
) -> None:
    """The example of docs/blocks.md, smaller in width and with random tokens."""
    sizes = [*SMALL, "--depth", "64", "--width", "32", "--heads", "4", "--tokens", "16"]
    words = ["preset:skipless-plain", "preset:skipless", "--jacobian-steps", "0", "--out", tmp_path]
    outcome = shell("signal", *words, *sizes, "--json")
    assert outcome.status == 0
    models = json.loads(outcome.output)["models"]
    plain, shaped = models["skipless-plain"], models["skipless"]
    assert plain["rank_collapse_from_layer"] < 16
    assert plain["layers"][-1]["token_similarity"] > 0.999
    assert plain["layers"][-1]["stable_rank"] == pytest.approx(1, abs=1e-3)
    assert shaped["rank_collapse_from_layer"] is None
    assert shaped["layers"][-1]["token_similarity"] < 0.7
    queries = [layers["layers"][-1]["gradient query"] for layers in (plain, shaped)]
    assert queries[0] < 1e-3 * queries[1]


@pytest.mark.usefixtures("blank")
def test_every_number_is_that_of_propagate(shell: Shell, tmp_path: Path) -> None:
    outcome = shell("signal", "preset:sas", *SMALL, "--seed", "5", "--out", tmp_path)
    assert outcome.status == 0
    sample = InspectionSettings(data="random", sequences=2, tokens=8, seed=5, **SIZES)
    subject, batch = opening.opened("preset:sas", sample)
    batch["labels"] = batch["input_ids"]
    expected = propagate(subject.model, batch, jacobian_steps=8).to_rows()
    found = rows(tmp_path)
    assert [(r["layer"], r["quantity"], r["role"]) for r in found] == [
        (str(r["layer"]), r["quantity"], r["role"]) for r in expected
    ]
    assert [float(r["value"]) for r in found] == pytest.approx([r["value"] for r in expected])
    assert {r["model"] for r in found} == {"sas"}
    quantities = {r["quantity"] for r in found}
    assert {"attention_entropy", "jacobian_condition", "gradient_norm"} < quantities


@pytest.mark.slow  # every panel of every role
def test_its_figures_are_drawn(shell: Shell, tmp_path: Path) -> None:
    assert shell("signal", "preset:sas", *SMALL, "--out", tmp_path).status == 0
    for name in ("signal", "gradients"):
        for kind in ("png", "svg"):
            assert (tmp_path / "figures" / f"{name}.{kind}").stat().st_size > 1000


SIZES: dict[str, Any] = {
    "depth": 3, "width": 16, "heads": 2, "mlp_width": None, "vocab_size": 64,
}  # fmt: skip


@pytest.mark.usefixtures("blank")
def test_folders_and_presets_stand_side_by_side(shell: Shell, tmp_path: Path) -> None:
    config = GPT2Config(
        n_embd=16, n_head=2, n_layer=2, vocab_size=64, n_positions=16, bos_token_id=0,
        eos_token_id=0
    )  # fmt: skip
    torch.manual_seed(0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "sas")
    outcome = shell(
        "signal", tmp_path / "sas", "preset:sas", *SMALL, "--json", "--out", tmp_path / "out"
    )
    models = json.loads(outcome.output)["models"]
    assert list(models) == [str(tmp_path / "sas"), "preset:sas"]
    assert all(entry["not_measured"] == {} for entry in models.values())
    other = models[str(tmp_path / "sas")]["layers"][-1]
    assert other["head_second_moment head.1"] > 0
    assert other["gradient query_key_value"] > 0
    assert outcome.status == 0


@pytest.mark.usefixtures("blank")
def test_what_is_not_measured_has_a_reason(shell: Shell, tmp_path: Path) -> None:
    own = BloomConfig(vocab_size=64, hidden_size=16, n_layer=2, n_head=2)
    BloomForCausalLM(own).save_pretrained(tmp_path / "bloom")
    given = (*SMALL, "--jacobian-steps", "0", "--json", "--out", tmp_path / "out")
    outcome = shell("signal", "preset:sas", tmp_path / "bloom", *given)
    found = json.loads(outcome.output)["models"]["bloom"]
    assert list(found["not_measured"]) == ["attention_entropy", "largest_logit", "second_moment"]
    assert all("go through" in reason for reason in found["not_measured"].values())


@pytest.mark.usefixtures("blank")
def test_text_is_the_same_for_every_preset_and_the_table_says_what_it_shows(
    shell: Shell, tmp_path: Path
) -> None:
    words = [*SMALL, "--data", shell.code, "--vocab-size", "260", "--out", tmp_path]
    outcome = shell("signal", "preset:pre-ln", "preset:sas-p", *words)
    assert outcome.status == 0
    inputs = [r for r in rows(tmp_path) if r["layer"] == "" and r["quantity"] == "stable_rank"]
    assert [r["model"] for r in inputs] == ["pre-ln", "sas-p"]
    assert "sas-p: no rank collapse" in outcome.output


def test_plain_names_are_the_block_without_shaping() -> None:
    assert "skipless-plain" in opening.plain_names()
    assert "pre-ln-plain" not in opening.plain_names()
    plain, shaped = (opening.block(name, width=16, heads=2) for name in ("sas-plain", "sas"))
    assert plain.attention.shaping is None
    assert plain.attention.query.initial == "normal"
    assert plain.replace(attention=shaped.attention) == shaped
    assert shaped == hb.preset("sas", width=16, heads=2)


@pytest.mark.usefixtures("blank")
def test_a_second_run_replaces_the_first_but_nothing_else(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert shell("signal", "preset:sas", *SMALL, "--out", out).status == 0
    assert shell("signal", "preset:pre-ln", *SMALL, "--out", out).status == 0
    assert {r["model"] for r in rows(out)} == {"pre-ln"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    outcome = shell("signal", "preset:sas", *SMALL, "--out", tmp_path / "other")
    assert outcome.status == 2
    assert "--out: " in sentence(outcome)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "MODEL is missing; type hessblocks signal"),
        (["preset:skipless-plan"], "MODEL: 'skipless-plan' is unknown; did you mean 'skip"),
        (["preset:pre-ln-plain"], "MODEL: 'pre-ln-plain' is unknown"),
        (["preset:sas", "preset:sas"], "MODEL: preset:sas was given twice"),
        (["./nowhere"], "MODEL: ./nowhere does not exist"),
        (["preset:sas", "--heads", "3"], "--heads: 3 heads do not divide the width 16"),
        (["preset:sas", "--tokens", "1"], "--tokens: expected a whole number of at least 2, got 1"),
        (["preset:sas", "--depth", "0"], "--depth: expected a whole number of at least 1, got 0"),
        (
            ["preset:sas", "--vocab-size", "260", "--data", "/nowhere"],
            "--data: /nowhere is not a file or folder",
        ),
        (["preset:sas", "--device", "tpu"], "--device: expected auto, cpu or cuda"),
    ],
    ids=str,
)
def test_wrong_arguments_are_one_sentence(
    shell: Shell, tmp_path: Path, words: list[str], expected: str
) -> None:
    outcome = shell("signal", *SMALL, *words, "--out", tmp_path / "out")
    assert outcome.status == 2
    assert expected in sentence(outcome)
    assert outcome.output == ""
    assert not (tmp_path / "out").exists()


def test_infinite_conditions_are_drawn_nowhere_and_null_in_json(tmp_path: Path) -> None:
    lines = ["model,seed,layer,quantity,role,value,method"]
    lines += [f"m,0,{layer},jacobian_condition,,{v},exact" for layer, v in ((0, "inf"), (1, "3"))]
    (tmp_path / "results.csv").write_text("\n".join(lines) + "\n")
    drawn = write_signal_figures(tmp_path)
    assert len(drawn) == 2
    assert all(path.stat().st_size > 1000 for path in drawn)
    from hessblocks.cli.signal_screen import described

    values = [
        {"model": "m", "layer": layer, "quantity": q, "role": "", "value": v}
        for layer, q, v in (
            ("", "token_similarity", 0.5),
            (0, "token_similarity", 0.5),
            (0, "jacobian_condition", math.inf),
        )
    ]
    assert described(values)["m"]["layers"][1]["jacobian_condition"] is None


@pytest.mark.parametrize("text", ["", "model,layer\nx,y\n",
    "model,seed,layer,quantity,role,value\nm,0,0,norm,,many\n"])  # fmt: skip
def test_damaged_results_are_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.csv").write_text(text)
    if not text:
        assert write_signal_figures(tmp_path) == []
        return
    with pytest.raises(
        RunError, match=r"results.csv, line [12]: .*; mend or remove it, or run the command again"
    ):
        write_signal_figures(tmp_path)


def test_missing_results_are_reported(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"results\.csv: cannot be read"):
        write_signal_figures(tmp_path)
