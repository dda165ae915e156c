"""Compare blocks from Python, as `hessblocks compare` does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hessblocks import settings
from hessblocks.blocks import PRESETS, BlockConfig, parted, pattern_names, preset
from hessblocks.conventions import AnyPath
from hessblocks.data import DEFAULT_VOCABULARY, load_corpus
from hessblocks.errors import ArgumentError, check_name
from hessblocks.progress import Progress
from hessblocks.storage import FolderResults, canonical, load_results
from hessblocks.training import compare as run_all
from hessblocks.training import resolve_device

KINDS = (settings.ModelSettings, settings.TunedSettings, settings.ObservationSettings)
NamedBlocks = Mapping[str, str | BlockConfig] | Sequence[str]


def compare(
    blocks: NamedBlocks,
    *,
    out: AnyPath,
    data: AnyPath | None = None,
    vocab_size: int = DEFAULT_VOCABULARY,
    seeds: Sequence[int] = (0,),
    curvature: bool = True,
    device: str = "auto",
    progress: Progress | None = None,
    finish: Callable[[Path], object] | None = None,
    **fields: Any,
) -> FolderResults:
    """Train blocks on the same data, and map their curvature before and after.

    Args:
        blocks: names of presets and variants, or name → block or preset:
            {"base": "pre-ln-zero", "mine": BlockConfig(...)}.
        out: run folder, new or of the same comparison, which is then resumed.
        data: file or folder of text; None: Python's standard library.
        vocab_size: size of the vocabulary learnt from the data.
        seeds: random seeds; each block is trained once with each seed.
        curvature: whether to measure curvature before and after training.
        device: auto, cpu or cuda.
        progress: shows stages and steps.
        finish: called with the folder at the end, such as `hessblocks.report.write_report`.
        **fields: fields of `ModelSettings`, `TunedSettings` (tune=True, steps=1000) and
            `ObservationSettings`. `width` is by default that of the given blocks.

    Returns:
        The contents of the folder.

    Raises:
        ArgumentError: a name or field is unknown, blocks differ in width or share a name, a rate
            is given with tune=True, there is too little data, or `out` contains another run.
        RunError: `out` cannot be written.

    Examples:
        >>> import pathlib, tempfile, hessblocks as hb
        >>> sizes = {"depth": 1, "width": 16, "heads": 2, "context": 32, "vocab_size": 270}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     text, out = pathlib.Path(folder, "text.txt"), pathlib.Path(folder, "run")
        ...     _ = text.write_text("To be, or not to be, that is the question. " * 1000)
        ...     found = hb.compare(["pre-ln", "sas-p"], out=out, data=text, steps=2, **sizes)
        >>> sorted({row.quantity for row in found.measurements})[:4]
        ['flops', 'frobenius_norm', 'loss', 'parameters']
    """
    named_blocks = blocks if isinstance(blocks, Mapping) else dict(zip(blocks, blocks, strict=True))
    first = next((block for block in named_blocks.values() if isinstance(block, BlockConfig)), None)
    if first is not None:
        fields.setdefault("width", first.width)
    names = [name for kind in KINDS for name in settings.kinds(kind)]
    for name in fields:
        check_name("setting", name, names)
    model, training, observation = (_made(kind, fields) for kind in KINDS)
    sizes = {name: getattr(model, name) for name in ("width", "heads", "mlp_width")}
    written = {}
    for name, block in named_blocks.items():
        if name == block:
            continue
        if set(name) & set("+,[]/\\") or name in PRESETS:
            raise ArgumentError(f"blocks: {name!r} is not allowed as a name; choose another")
        config = block if isinstance(block, BlockConfig) else preset(block, **sizes)
        written[name] = canonical(config.to_dict())
    for part in (part for name in named_blocks for part in pattern_names(name)):
        check_name("blocks", parted(part)[0], [*PRESETS, *written])
    comparison = settings.ComparisonSettings(
        presets=tuple(named_blocks),
        seeds=tuple(seeds),
        model=replace(model, blocks=tuple(written.items())),
        training=training.of_each,
        tune=training.tune,
        curvature=observation.sample if curvature else None,
        observation=observation,
        device=resolve_device(device),
    )
    run_all(comparison, load_corpus(data, vocab_size), out, progress or Progress(), finish=finish)
    return load_results(out)


def _made(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Make settings of a kind from its fields."""
    return settings.make(kind, {n: fields[n] for n in settings.kinds(kind) if n in fields})
