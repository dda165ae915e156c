"""Synthetic run folders with numbers that are known in advance."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hessblocks.storage.tables import COLUMNS

PRESETS = ("pre-ln", "parallel", "sas", "sas-p", "sas-p-no-norm")
PARTS = {"outer": 1.0, "functional": 0.25, "full": 1.1}
ROLES = ("query", "key", "value", "projection", "mlp_in", "mlp_out", "gain", "norm")
STEPS = range(0, 201, 10)


@dataclass(kw_only=True)
class Folder:
    """What a synthetic comparison holds; each field may be changed before it is written."""

    presets: tuple[str, ...] = PRESETS
    seeds: tuple[int, ...] = (0,)
    layers: int = 2
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = {
            "command": "compare",
            "presets": list(self.presets),
            "seeds": list(self.seeds),
            "model": {"depth": self.layers, "width": 64, "heads": 4, "context": 128},
            "data": {"name": "python-code", "fingerprint": "0123abcd"},
            "training": {"steps": 200, "learning_rate": 0.001, "log_every": 10},
            "curvature": {"sequences": 8, "tokens": 32, "probes": 16, "seed": 0},
        }
        for index, preset in enumerate(self.presets):
            for seed in self.seeds:
                self.metrics += training(preset, seed, index)
                self.rows += measurements(preset, seed, index, self.layers)

    def change(self, edit: Callable[[dict[str, Any]], None], **wanted: Any) -> None:
        """Apply `edit` to each result row with the wanted values."""
        for row in self.rows:
            if all(row[name] == value for name, value in wanted.items()):
                edit(row)

    def write(self, folder: Path) -> Path:
        """The run folder on disk."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "environment.json").write_text(
            json.dumps(
                {"hessblocks": "0.1.0", "packages": {"torch": "2.13.0"}, "memory": 8_000_000_000}
            )
        )
        lines = "".join(json.dumps(line) + "\n" for line in self.metrics)
        (folder / "metrics.jsonl").write_text(lines)
        write_rows(folder / "results.csv", self.rows)
        return folder


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def loss(index: int, seed: int, step: int) -> float:
    """Falls from 8.3 nats per token; a later preset is a little worse, a later seed too."""
    return 4.9 + 0.08 * index + 0.02 * seed + (3.4 - 0.08 * index) * math.exp(-step / 60)


def training(preset: str, seed: int, index: int) -> list[dict[str, Any]]:
    lines = []
    for step in STEPS:
        common = {
            "preset": preset,
            "seed": seed,
            "step": step,
            "tokens": step * 2048,
            "seconds": step * (0.12 - 0.008 * index),
        }
        value = loss(index, seed, step)
        wiggle = 0.06 * math.sin(step + index)
        train = {"loss": value + wiggle, "learning_rate": 1e-3, "gradient_norm": 0.9}
        lines.append({**common, "split": "train", "tokens_per_second": 17000, **train})
        if step % 40 == 0:
            lines.append({**common, "split": "validation", "loss": value + 0.05})
    return lines


def row(preset: str, seed: int, quantity: str, value: float, **more: Any) -> dict[str, Any]:
    empty = dict.fromkeys(COLUMNS, "")
    return {**empty, "preset": preset, "seed": seed, "quantity": quantity, "value": value} | more


def groups(layers: int) -> Iterable[tuple[str, str, int | str]]:
    """(group, role, layer)."""
    yield "embedding.token", "embedding", ""
    yield "embedding.position", "embedding", ""
    names = dict.fromkeys(ROLES, "")
    names |= {role: f"attention.{role}" for role in ROLES[:4]}
    names |= {"mlp_in": "mlp.in", "mlp_out": "mlp.out", "gain": "gains", "norm": "norm"}
    for layer in range(layers):
        for role in ROLES:
            yield f"layers.{layer}.{names[role]}", role, layer
    yield "final.norm", "norm", ""


def norm(index: int, group: int, stage: str, part: str) -> float:
    """Spread over decades that narrow as blocks are simplified and as they are trained."""
    decades = (4 - 0.5 * index) * (1.0 if stage == "initial" else 0.7)
    return PARTS[part] * 10 ** (decades * ((group * 7) % 10) / 9 - 2)


def measurements(preset: str, seed: int, index: int, layers: int) -> list[dict[str, Any]]:
    measured = {"method": "measured"}
    rows = [
        row(preset, seed, "parameters", 167_000 - 7_000 * index, method="exact"),
        row(preset, seed, "tokens_per_second", 17_000 + 1_200 * index + 100 * seed, **measured),
        row(preset, seed, "peak_memory", 1.2e9 - 5e7 * index, **measured),
        row(preset, seed, "training_time", 24 - 1.6 * index, **measured),
        row(preset, seed, "loss", loss(index, seed, 0) + 0.05, stage="initial", **measured),
        row(preset, seed, "loss", loss(index, seed, 200) + 0.05, stage="final", **measured),
    ]
    for stage in ("initial", "final"):
        for place, (group, role, layer) in enumerate(groups(layers)):
            for part in PARTS:
                value = norm(index, place, stage, part) * (1 + 0.1 * seed)
                about = {"group": group, "role": role, "layer": layer, "part": part}
                error = {"standard_error": 0.08 * value, "method": "estimate"}
                rows.append(
                    row(preset, seed, "frobenius_norm", value, stage=stage, **about, **error)
                )
    return rows
