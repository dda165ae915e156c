"""`hessblocks presets`: list every block, what it removes, and its size at given dimensions."""

from dataclasses import asdict, dataclass
from typing import Any

from hessblocks.cli import checks, options
from hessblocks.errors import ArgumentError
from hessblocks.settings import PresetSizes

VARIANT = "a variant, fields in brackets: hessblocks compare --presets 'pre-ln,sas[mlp.gated=true]'"


def presets(*, sizes: PresetSizes, screen: options.Screen) -> None:
    """List the blocks, what each removes, and their size, without allocating any weights."""
    sizes.check_heads(checks.PRESETS)
    from hessblocks.blocks import PRESETS
    from hessblocks.cli.terminal import plain_table, show

    counted = block_sizes(sizes)
    described = {"command": "presets", "presets": {s.preset: asdict(s) for s in counted}}
    left_out = [name for name in PRESETS if name not in described["presets"]]
    described["left_out"] = left_out
    note = (
        f"{sizes.depth} layers, width {sizes.width}, {sizes.heads} heads, vocabulary "
        f"{sizes.vocab_size:,}, context {sizes.context}; multiply-adds: of one token, in the whole "
        "model with its head"
    )
    if left_out:
        note += f"; left out, since what was set excludes their parts: {', '.join(left_out)}"
    columns = ("block", "what it is", "parameters", "multiply-adds")
    rows = [(s.preset, s.summary, f"{s.parameters:,}", _millions(s.multiply_adds)) for s in counted]
    show(described, [plain_table(columns, rows, left=2), note, VARIANT], as_json=screen.json)


@dataclass(frozen=True, kw_only=True)
class BlockSize:
    """Size of a model of one preset."""

    preset: str
    """Name of the block."""
    summary: str
    """Description of the block and of what it removes."""
    parameters: int
    """Number of trainable parameters; tied ones count once."""
    multiply_adds: int
    """Multiply-adds of one token, the last one of a full context or window. The centring term of
    shaped attention, a mean, is not counted."""


def block_sizes(sizes: PresetSizes) -> list[BlockSize]:
    """Count parameters and products of every preset at the same sizes, with the same slots.

    Args:
        sizes: layers, widths, vocabulary and context, and slots that are set in each preset.

    Returns:
        One entry per preset; presets that cannot have these slots are left out.

    Raises:
        ArgumentError: sizes do not fit, or no preset can have the slots.
    """
    from hessblocks.blocks import PRESETS

    counted, refusal = [], None  # the first refusal comes from pre-ln, which has most slots
    for name in PRESETS:
        try:
            counted.append(_size(name, sizes))
        except ArgumentError as error:
            refusal = refusal or error
    if refusal and not (counted and (sizes.slots or sizes.position)):
        raise refusal
    return counted


def _size(name: str, sizes: PresetSizes) -> BlockSize:
    """Count one preset on the meta device, without memory and without transformers."""
    from unittest.mock import patch

    import torch
    from torch import nn

    from hessblocks import blocks

    fields: dict[str, Any] = {n: getattr(sizes, n) for n in ("width", "heads", "mlp_width")}
    slots = blocks.slot_pairs(sizes.slots)
    if sizes.position is not None:
        fields["position"] = blocks.part_of(sizes.position, blocks.Position, "position")
        slots = [("position", fields["position"]), *slots]
    block = blocks.preset(name, slots=slots, **fields)
    # normal_ of a tensor without memory would import torch's compiler, which takes a second
    with (
        patch.object(torch.Tensor, "normal_", lambda weight, *_, **__: weight),
        torch.device("meta"),
    ):
        embedding = nn.Embedding(sizes.vocab_size, sizes.width)  # the output head is its transpose
        layers: Any = nn.ModuleList(blocks.Block(block, n, sizes.depth) for n in range(sizes.depth))
        for layer in layers:
            layer.share(layers[0])
        parts = [embedding, block.position.build(sizes.context, sizes.width), layers]
        model = nn.ModuleList(filter(None, [*parts, block.final_norm.build(sizes.width)]))
    weights = [
        module.weight.numel() if isinstance(module, nn.Linear) else module.update.numel()
        for module in layers.modules()
        if isinstance(module, nn.Linear | blocks.ReparametrisedLinear)
    ]
    weights.append(embedding.weight.numel())
    keys = min(sizes.context, block.attention.window or sizes.context)
    attending = sizes.depth if block.attends else 0
    return BlockSize(
        preset=name,
        summary=blocks.summary(name),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        multiply_adds=sum(weights) + 2 * attending * keys * block.heads * block.resolved_head_width,
    )


def _millions(count: int) -> str:
    """Format a count in millions; below 100,000 in full."""
    return f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,}"
