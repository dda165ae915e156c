"""`hessblocks verify`: compare the closed forms with autodiff on this machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hessblocks.cli import options
from hessblocks.errors import RunError
from hessblocks.settings import SEED

if TYPE_CHECKING:
    from hessblocks.theory import Check


@options.taking
def verify(
    *,
    dtype: Annotated[
        str, Parameter(help="Precision of the closed form.", choices=("float64", "float32"))
    ] = "float64",
    out: Annotated[Path | None, Parameter(help="Folder for all errors, as verify.json.")] = None,
    seed: Annotated[int, options.within("Random seed of the inputs.", *SEED)] = 0,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Compare closed forms with autodiff: layers, and last layers of tiny models of every kind."""
    import torch

    from hessblocks.cli.terminal import make_progress, show
    from hessblocks.curvature import verify_last_blocks
    from hessblocks.storage import write_json
    from hessblocks.theory import CASES, verify_closed_forms
    from hessblocks.training import resolve_device

    chosen = resolve_device(device)
    precision = getattr(torch, dtype)
    models = _models() if dtype == "float64" else {}
    progress, count = make_progress(), itertools.count(1)
    with progress.stage("comparing", total=len(CASES) + len(models)):

        def step(_: str) -> None:
            progress.step(next(count), None)

        checks = verify_closed_forms(dtype=precision, device=chosen, seed=seed, progress=step)
        checks += verify_last_blocks(models, seed=seed, progress=step)
    failed = [check for check in checks if not check.passed]
    described = {
        "command": "verify",
        "dtype": dtype,
        "device": chosen,
        "passed": not failed,
        "checks": [{**asdict(check), "passed": check.passed} for check in checks],
    }
    if out is not None:
        write_json(out / "verify.json", described)
    last = "last layers on the CPU" if models else "last layers are compared in float64 alone"
    note = (
        f"{len(checks)} blocks and parts in {dtype} on {chosen} ({last}): {_verdict(checks)}; "
        "shown are the largest relative errors (Frobenius norm) against autodiff"
    )
    show(described, [_table(checks)], [note], as_json=screen.json)
    if failed:
        worst = max(failed, key=lambda check: check.error)
        raise RunError(
            f"verify: {len(failed)} of {len(checks)} errors exceed their bound, the largest "
            f"{worst.error:.1e} > {worst.bound:.0e} in {worst.case}, {worst.block}, {worst.part}."
        )


SLOTS: dict[str, dict[str, Any]] = {
    "norms of branches": {"attention_branch.norm": "rms", "mlp_branch.norm": "layer"},
    "alibi": {"position": "alibi"},
    "derf": {"norm": "derf", "final_norm": "derf"},
    "skip to the embedding": {"embedding_skip": "branch"},
}
"""Slots of pre-LN variants that have a closed form and are in no preset."""


def _models() -> dict[str, Callable[[], Any]]:
    """Make functions that build tiny models: of every preset, other slots, every model family."""
    from hessblocks.blocks import PRESETS
    from hessblocks.curvature import FAMILY_MODELS
    from hessblocks.models import build

    size: dict[str, Any] = {"depth": 2, "width": 4, "heads": 2, "mlp_width": 6}
    text: dict[str, Any] = {"vocab_size": 7, "context": 6, "tie_word_embeddings": False}
    presets = {f"hessblocks, {name}": partial(build, name, **size, **text) for name in PRESETS}
    others = {
        f"hessblocks, {name}": partial(build, "pre-ln", slots=slots, **size, **text)
        for name, slots in SLOTS.items()
    }
    return {**presets, **others, **FAMILY_MODELS}


def _table(checks: Sequence[Check]) -> Any:
    from hessblocks.cli.terminal import plain_table
    from hessblocks.conventions import PARTS

    rows = []
    for case, group in itertools.groupby(checks, key=lambda check: check.case):
        own = list(group)
        errors = [max(check.error for check in own if check.part == part) for part in PARTS]
        blocks = str(len(own) // len(PARTS))
        rows.append((case, blocks, *(f"{error:.1e}" for error in errors), _verdict(own)))
    return plain_table(("case", "blocks", *PARTS, "verdict"), rows)


def _verdict(checks: Sequence[Check]) -> str:
    failed = sum(not check.passed for check in checks)
    within = f"{failed} above" if failed else "all within"
    return f"{within} {checks[0].bound:.0e}"
