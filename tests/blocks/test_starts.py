"""How weights are drawn: by the widths, or with one standard deviation as before."""

import json
import math
from pathlib import Path

import pytest
import torch

import hessblocks as hb
from hessblocks.blocks import BlockConfig, Dense, preset, with_slots, with_start
from hessblocks.blocks.weights import FIXED, GAIN
from hessblocks.errors import ArgumentError
from hessblocks.models import HessblocksConfig, HessblocksForCausalLM

SIZES = {"depth": 2, "width": 256, "heads": 4, "vocab_size": 2000, "context": 8}
ROOT = Path(__file__).parents[2]
BESIDE_A_SKIP = ["pre-ln", "pre-ln-zero", "post-ln", "parallel", "op", "modern"]


def deviation(weight: torch.Tensor) -> float:
    return weight.double().square().mean().sqrt().item()


@pytest.mark.parametrize("inputs", [64, 1024])
def test_fan_in_goes_by_the_inputs(inputs: int) -> None:
    torch.manual_seed(0)
    drawn = deviation(Dense(gain=2.0).build(inputs, 512).weight)
    assert drawn == pytest.approx(2 / math.sqrt(inputs), rel=0.02)
    assert deviation(Dense().build(256, 512).weight) == pytest.approx(0.02, rel=0.02)
    assert deviation(Dense(std=0.3).build(inputs, 512).weight) == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize("name", hb.PRESETS)
def test_each_preset_draws_its_embeddings_by_the_width(name: str) -> None:
    torch.manual_seed(0)
    model = hb.build(name, **SIZES)
    expected = 1 / 16 if name in BESIDE_A_SKIP else 1 / 256
    assert model.config.embedding_std == expected
    assert deviation(model.model.token_embedding.weight) == pytest.approx(expected, rel=0.01)
    output = model.model.layers[1].mlp.output.weight
    assert deviation(output) == pytest.approx(GAIN / math.sqrt(output.shape[1]), rel=0.01)


@pytest.mark.parametrize("name", hb.PRESETS)
def test_the_fixed_start_is_one_number_at_every_width(name: str) -> None:
    torch.manual_seed(0)
    model = hb.build(name, start="fixed", **SIZES)
    layer = model.model.layers[1]
    matrices = (layer.attention.key, layer.mlp.input, layer.mlp.output, model.model.token_embedding)
    assert [deviation(one.weight) for one in matrices] == pytest.approx([FIXED] * 4, rel=0.02)


def test_what_is_given_outlives_the_start() -> None:
    slots = {"attention.value.std": 0.125, "mlp.output.std": "fan-in", "mlp.output.gain": 2.0}
    model = hb.build("pre-ln", start="fixed", embedding_std=0.5, slots=slots, **SIZES)
    block = model.config.block_config
    assert (block.attention.value.std, block.mlp.output.std) == (0.125, "fan-in")
    assert (block.mlp.output.gain, block.mlp.input.std) == (2.0, FIXED)
    assert model.config.embedding_std == 0.5
    kept = with_start(preset("pre-ln", mlp=hb.blocks.MLP(input=Dense(std=0.3))), "fixed")
    assert kept.mlp.input.std == 0.3


def test_layers_in_turn_have_the_embeddings_of_the_first() -> None:
    assert hb.build("pre-ln+sas", **SIZES).config.embedding_std == 1 / 16
    assert hb.build("sas+pre-ln", **SIZES).config.embedding_std == 1 / 256


def test_a_configuration_of_before_draws_what_it_drew() -> None:
    """One that was saved before starts went by the widths: no gain, no embeddings in the block."""

    block = with_start(preset("pre-ln", width=64), "fixed").to_dict()
    del block["embedding_std"]
    for part, name in (("attention", "query"), ("mlp", "output")):
        del block[part][name]["gain"]
    assert BlockConfig.from_dict(block).mlp.output == Dense(std=0.02)
    config = HessblocksConfig(block=block, depth=1, vocab_size=2000)
    model = HessblocksForCausalLM(config)
    drawn = [
        deviation(one.weight)
        for one in (model.model.token_embedding, model.model.layers[0].mlp.output)
    ]
    assert drawn == pytest.approx([0.02, 0.02], rel=0.02)


def test_one_matrix_scores_leave_the_key_as_either_start_has_it() -> None:
    one = with_slots(
        preset("pre-ln", position=hb.blocks.LearnedPosition()),
        {"attention.query_key": "one-matrix"},
    )
    assert BlockConfig.from_dict(with_start(one, "fixed").to_dict()).attention.key.std == FIXED


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dense(std=0.02, gain=2.0), "gain=2 and std=0.02 exclude each other"),
        (
            lambda: Dense(std="fanin"),
            "dense: std: expected fan-in or a number above 0, got 'fanin'",
        ),
        (lambda: preset("sas", start="small"), "start: 'small' is unknown"),
        (
            lambda: hb.build("sas", embedding_std=0),
            "expected over-sqrt-width or over-width or a num",
        ),
    ],
)
def test_what_is_not_a_start_is_refused(make, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_the_best_rates_are_those_of_the_benchmark() -> None:
    """With scaled starts and rates by width they lie within half a decade; the page says so."""
    path = ROOT / "benchmarks" / "results" / "transfer.json"
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    page = (ROOT / "docs" / "blocks.md").read_text(encoding="utf-8")
    words = {"scaled, by width": "scaled, `--rates width`", "fixed, the same": "fixed, same rate"}
    for block in ("pre-ln-zero", "sas-p"):
        for way, said in words.items():
            searches = figures[block][way]
            best = [searches[width]["best"] for width in ("64", "128", "256")]
            for search in searches.values():
                losses = {float(rate): loss for rate, loss in search["losses"].items()}
                assert min(losses, key=losses.__getitem__) == search["best"]
                assert min(losses) < search["best"] < max(losses)
            assert f"| {block} | {said} | {' | '.join(f'{rate:g}' for rate in best)} |" in page
            if way == "scaled, by width":
                assert max(best) / min(best) < 3.5
