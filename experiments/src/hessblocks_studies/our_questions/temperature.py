"""Measure Hessian blocks against the softmax temperature and the likeness of tokens.

One layer at initialisation, exact Hessian. Tokens are √(1 − ε²) c + ε z; c is common to all, z
differs. The predicted powers of τ and ε: PLAN.md beside this file, section `temperature`.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from hessblocks import signal
from hessblocks.blocks import Attention, LayerNorm, LearnedPosition, NoNorm, preset
from hessblocks.figures import Panel
from hessblocks.storage import NORM, Row
from hessblocks_studies import growth, shared
from hessblocks_studies.data import addition_batch
from hessblocks_studies.engine import Check, Rows, Scale, Study, Summary, seed_of
from hessblocks_studies.growth import exact_norms
from hessblocks_studies.our_questions import temperature_laws as laws

BLOCKS = {"no norm": NoNorm(), "pre-ln": LayerNorm()}
"""Kind of block → its norm."""
GROUPS = ("query", "key", "value")
_DECADES = tuple(float(f"1e{power}") for power in range(-8, 5))
_BETWEEN = tuple(float(f"3e{power}") for power in range(-8, 4))
TEMPERATURES: dict[Scale, tuple[float, ...]] = {
    "smoke": _DECADES,
    "laptop": (*_DECADES, *_BETWEEN),
    "paper": (*_DECADES, *_BETWEEN),
}
_SIZES: dict[Scale, growth.Size] = {
    "smoke": growth.Size(width=16, sums=8, seeds=2),
    "laptop": growth.Size(width=64, sums=64, seeds=5),
    "paper": growth.Size(width=128, sums=64, seeds=20),
}
DRAWN = 1e-15
"""Norms below this value are not drawn."""


@dataclass(frozen=True, kw_only=True)
class TemperatureSettings(growth.DrawSettings):
    """Settings of a point: one layer at one temperature; equal seeds draw equal random numbers."""

    block: str
    """Name in `BLOCKS`."""
    temperature: float
    """Temperature τ, which divides the scores; 1 is the usual 1/√K."""
    apart: float
    """ε: 1 for tokens with nothing in common, 0 for equal tokens."""


def settings(scale: Scale, seeds: int | None) -> list[TemperatureSettings]:
    """List every temperature with ε = 1, and every ε at temperature 1."""
    size = _SIZES[scale]
    places = [(temperature, 1.0) for temperature in TEMPERATURES[scale]]
    places += [(1.0, apart) for apart in laws.APART if apart < 1]
    return [
        TemperatureSettings(
            block=block,
            temperature=temperature,
            apart=apart,
            width=size.width,
            sums=size.sums,
            seed=seed,
        )
        for block, (temperature, apart), seed in itertools.product(
            BLOCKS, places, range(seeds or size.seeds)
        )
    ]


def measure(settings: TemperatureSettings) -> list[Row]:
    """Measure exact norms of the diagonal blocks, entropy of attention, and likeness of tokens."""
    draw = seed_of("temperature", settings.seed)
    model, batch = layer(settings, draw), addition_batch(settings.sums, seed=draw)
    names = ("block", "temperature", "apart", "seed")
    columns: Row = {"study": "temperature", **{name: getattr(settings, name) for name in names}}
    signals = signal.propagate(model, batch["input_ids"], jacobian_steps=0)
    (last,) = signals.layers
    quantities = {
        laws.ENTROPY: last.attention_entropy,
        laws.LIKENESS: signals.inputs.token_similarity,
        laws.LIKENESS_AFTER: last.tokens.token_similarity,
    }
    norms = exact_norms(model, batch, "causal-lm", GROUPS)
    return [
        *(shared.measured(name, value, "exact", **columns) for name, value in quantities.items()),
        *(
            shared.measured(NORM, norm.value, "exact", **columns, group=group, part=part)
            for (group, part), norm in norms.items()
        ),
    ]


def layer(settings: TemperatureSettings, draw: int) -> PreTrainedModel:
    """Build one layer with a temperature, on tokens of unit size that share a component."""
    norm, width = BLOCKS[settings.block], settings.width
    block = preset(
        "pre-ln",
        width=width,
        heads=1,
        norm=norm,
        final_norm=norm,
        position=LearnedPosition(),
        attention=Attention(temperature=settings.temperature),
    )
    model = growth.addition_model(block, layers=1, width=width, sigma=math.sqrt(0.5), seed=draw)
    generator = torch.Generator().manual_seed(draw + 1)
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    with torch.no_grad():
        for table in tables:
            common = torch.randn(width, generator=generator).to(table.weight) * math.sqrt(0.5)
            common *= math.sqrt(1 - settings.apart**2)
            table.weight.mul_(settings.apart).add_(common)
    return model


def summarise(rows: Rows) -> Summary:
    """Summarise slopes and limits of every block, and plot the curves."""
    checks: list[Check] = []
    even: list[dict[str, object]] = []
    for block in BLOCKS:
        heat, alike = (laws.Curves(block=block, axis=axis, rows=rows) for axis in laws.AXES)
        checks += [*laws.temperature_checks(heat), *laws.likeness_checks(alike)]
        even += [
            {"block": block, "seed": seed, "temperature": temperature}
            for seed, temperature in laws.even_temperatures(heat).items()
        ]
    return shared.summary(
        "Temperature and likeness of tokens move curvature between queries and values",
        "One layer at initialisation, exact norms of its diagonal blocks. Scores are divided by "
        "τ; tokens have entries of unit size, of which a share ε is their own. Norms below 1e-15 "
        "are left out. Mean over seeds, bars are its standard errors.",
        _panels(rows) if rows else [],
        checks,
        even=even,
    )


def _panels(rows: Rows) -> list[Panel]:
    panels = [
        shared.panel(
            f"{title}, {block}",
            label,
            "Frobenius norm of the block",
            {
                f"{group}, {part}": _places(
                    laws.Curves(block=block, axis=axis, rows=rows).norm(group, part), DRAWN
                )
                for group in GROUPS
                for part in ("outer", "functional")
            },
            log="xy",
            empty=True,
        )
        for axis, title, label in (
            ("temperature", "temperature", _TAU),
            ("apart", "likeness of tokens", "share ε of a token that is its own"),
        )
        for block in BLOCKS
    ]
    looks = {
        laws.ENTROPY: "entropy of attention (nats)",
        laws.LIKENESS_AFTER: "cosine between tokens behind the layer",
    }
    for quantity, label in looks.items():
        curves = {
            block: _places(laws.Curves(block=block, axis="temperature", rows=rows).of(quantity))
            for block in BLOCKS
        }
        panels.append(shared.panel("", _TAU, label, curves, log="x", empty=True))
    return panels


_TAU = "temperature τ of the attention"


def _places(curve: laws.Curve, floor: float = 0.0) -> list[shared.Place]:
    """Average over seeds at each positive point where the mean is at least `floor`."""
    places = sorted({x for points in curve.values() for x in points if x > 0})
    values = {x: list(laws.at(curve, x).values()) for x in places}
    return [mean for mean in shared.mean_places(values) if mean[1] >= floor]


STUDY = Study(
    name="temperature",
    title="temperature of attention and likeness of tokens against query, key and value blocks",
    source="ours, testing claims of the Hessian paper",
    published=(
        "Argued, not tested: query and key blocks follow the second and third moment of the "
        "inputs under attention, so that temperature moves them against the values', and one-hot "
        "attention or equal tokens (rank collapse) make them 0."
    ),
    settings=settings,
    measure=measure,
    summarise=summarise,
    columns=(
        *("study", "block", "temperature", "apart", "seed"),
        *("quantity", "group", "part", "value", "method"),
    ),
)
