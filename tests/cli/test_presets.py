"""Sizes of the presets against models that are built, and against counted operations."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import hessblocks as hb
from hessblocks.blocks.shaped import CHUNK
from hessblocks.cli.commands.presets import block_sizes
from hessblocks.settings.run_settings import PresetSizes
from tests.cli.helpers import Shell

SMALL = {"depth": 3, "width": 32, "heads": 4, "mlp_width": None, "vocab_size": 50, "context": 8}
"""A context of 8 is one chunk of the running mean."""


@pytest.mark.parametrize("preset", hb.PRESETS)
def test_sizes_are_those_of_a_model_that_is_built(preset: str) -> None:
    (size,) = (size for size in block_sizes(PresetSizes(**SMALL)) if size.preset == preset)
    model = hb.build(preset, **SMALL)
    model.set_attn_implementation("eager")
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=tokens)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    shaped = model.config.block_config.attention.shaping is not None
    running_mean = SMALL["depth"] * 2 * CHUNK * CHUNK * SMALL["width"] if shaped else 0
    assert size.multiply_adds * 8 * 2 == counter.get_total_flops() - running_mean


def test_a_window_takes_the_scores_outside_it_away() -> None:
    names = ("attention.window=3", "attention.window=9")
    near, far, full = (
        {size.preset: size.multiply_adds for size in block_sizes(PresetSizes(**SMALL, slots=slots))}
        for slots in (names[:1], names[1:], ())
    )
    assert far == full
    scores = 2 * SMALL["depth"] * (8 - 3) * SMALL["width"]
    assert near == {name: count - scores for name, count in full.items()}


def test_the_example_of_a_variant_is_one_and_stands_on_the_page_too(shell: Shell) -> None:
    (*_, last) = shell("presets").output.splitlines()
    command = last.partition(": ")[2]
    assert f"`{command}`" in Path("docs/blocks.md").read_text()
    *_, names = shlex.split(command)
    (variant,) = {*names.split(",")} - {*hb.PRESETS}
    preset = variant.partition("[")[0]
    blocks = [hb.build(name, **SMALL).config.block_config for name in (variant, preset)]
    assert blocks[0] != blocks[1]


@pytest.mark.parametrize(
    ("preset", "millions"),
    [
        pytest.param("pre-ln", 166.6, marks=pytest.mark.slow),  # one call counts all presets
        pytest.param("sas", 146.0, marks=pytest.mark.slow),
        ("sas-p", 146.0),
    ],
)
def test_the_published_sizes(shell: Shell, preset: str, millions: float) -> None:
    sizes = [
        "--depth",
        "18",
        "--width",
        "768",
        "--heads",
        "12",
        "--vocab-size",
        "50000",
        "--context",
        "1024",
        "--position",
        "learned",
    ]
    presets = json.loads(shell("presets", *sizes, "--json").output)["presets"]
    assert presets[preset]["parameters"] / 1e6 == pytest.approx(millions, abs=0.1)


def test_no_weight_is_allocated(shell: Shell) -> None:
    huge = ["--depth", "96", "--width", "12288", "--heads", "96", "--vocab-size", "50000"]
    presets = json.loads(shell("presets", *huge, "--json").output)["presets"]
    assert presets["pre-ln"]["parameters"] > 170e9


def test_slots_are_those_of_every_preset_that_can_have_them(shell: Shell) -> None:
    learned = shell("presets", "--position", "learned")
    assert "1,328,256" in learned.output  # 128 x 128 positions more
    assert "left out" not in learned.output
    zeros = shell("presets", "--set", "attention.query.init=zeros")
    assert "left out, since what was set excludes their parts: op, modern" in " ".join(
        zeros.output.split()
    )
    assert shell("presets", "--set", "attention.query.init=ones").status == 2


def test_small_counts_are_written_out(shell: Shell) -> None:
    small = ["--depth", "1", "--width", "8", "--heads", "1", "--vocab-size", "20", "--context", "4"]
    shown = shell("presets", *small)
    assert "0.0 M" not in shown.output
    exact = json.loads(shell("presets", *small, "--json").output)["presets"]["pre-ln"]
    assert f" {exact['multiply_adds']:,} " in shown.output


def test_the_table_lists_every_preset(shell: Shell) -> None:
    outcome = shell("presets")
    assert outcome.status == 0
    assert all(f" {name} " in outcome.output for name in hb.PRESETS)
    assert "1,311,872" in outcome.output
    written = json.loads(shell("presets", "--json").output)
    assert list(written["presets"]) == list(hb.PRESETS)
