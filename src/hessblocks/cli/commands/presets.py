"""`hessblocks presets`: list every block, what it removes, and its size at given dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hessblocks.cli import options
from hessblocks.errors import ArgumentError
from hessblocks.settings import PresetSizes

if TYPE_CHECKING:
    from torch import nn

    from hessblocks.blocks import BlockConfig


@options.taking
def presets(
    *,
    sizes: PresetSizes,
    out: Annotated[Path | None, Parameter(help="Folder for the table, as presets.json.")] = None,
    screen: options.Screen,
) -> None:
    """List the blocks, what each removes, and their size, without allocating any weights."""
    from hessblocks.blocks import PRESETS
    from hessblocks.cli.terminal import plain_table, show
    from hessblocks.storage import write_json

    found = block_sizes(sizes)
    described = {"command": "presets", "presets": {s.preset: asdict(s) for s in found}}
    if out is not None:
        write_json(out / "presets.json", described)
    left_out = described["left_out"] = [
        name for name in PRESETS if name not in described["presets"]
    ]
    note = (
        f"{sizes.depth} layers, width {sizes.width}, {sizes.heads} heads, vocabulary "
        f"{sizes.vocab_size:,}, context {sizes.context}; matmuls and multiply-adds: of one token, "
        "in the whole model with its head"
    )
    if left_out:
        note += f"; left out, since what was set excludes their parts: {', '.join(left_out)}"
    columns = ("block", "what it is", "parameters", "matmuls", "multiply-adds")
    rows = [
        (s.preset, s.summary, f"{s.parameters:,}", f"{s.matmuls:,}", _millions(s.multiply_adds))
        for s in found
    ]
    show(described, [plain_table(columns, rows, left=2), note], as_json=screen.json)


@dataclass(frozen=True, kw_only=True)
class BlockSize:
    """Size of a model of one preset."""

    preset: str
    """Name of the block."""
    summary: str
    """Description of the block and of what it removes."""
    parameters: int
    """Number of trainable parameters; tied ones count once."""
    matmuls: int
    """Matrix products of one token: weights, scores and mix of each layer, and the output head."""
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

    found, refusal = [], None  # the first refusal comes from pre-ln, which has most slots
    for name in PRESETS:
        try:
            found.append(_size(name, sizes))
        except ArgumentError as error:
            refusal = refusal or error
    if refusal and not (found and (sizes.slots or sizes.position)):
        raise refusal
    return found


def _size(name: str, sizes: PresetSizes) -> BlockSize:
    """Count one preset on its layers alone, built on the meta device, without memory."""
    from hessblocks.blocks import Position, part_of, preset, slot_pairs, summary, with_slots

    fields = {name: getattr(sizes, name) for name in ("width", "heads", "mlp_width")}
    if sizes.position is not None:
        fields["position"] = part_of(sizes.position, Position, "position")
    block = with_slots(preset(name, **fields), slot_pairs(sizes.slots))
    model = _trunk(block, sizes)
    weights = [*_applied_weights(model), embedding := sizes.vocab_size * sizes.width]
    seen = min(sizes.context, block.attention.window or sizes.context)
    layers = 0 if block.sub_blocks == "mlp" else sizes.depth
    mixed = block.heads * block.resolved_head_width
    return BlockSize(
        preset=name,
        summary=summary(name),
        parameters=embedding + sum(parameter.numel() for parameter in model.parameters()),
        matmuls=len(weights) + 2 * layers,
        multiply_adds=sum(weights) + 2 * layers * seen * mixed,
    )


def _trunk(block: BlockConfig, sizes: PresetSizes) -> nn.Module:
    """Build a model without its token embedding, to which its output head is tied."""
    import torch
    from torch.overrides import TorchFunctionMode

    from hessblocks.blocks import Block

    class WithoutValues(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            """Skip `torch.nn.init`, whose first call on meta tensors takes a second."""
            if getattr(function, "__module__", "") == "torch.nn.init":
                return keywords["tensor"]
            return function(*arguments, **(keywords or {}))

    with torch.device("meta"), WithoutValues():
        layers = [Block(block, layer, sizes.depth) for layer in range(sizes.depth)]
        position = block.position.build(sizes.context, sizes.width)
        parts = [*layers, position, block.final_norm.build(sizes.width)]
    return torch.nn.ModuleList(filter(None, parts))


def _applied_weights(model: nn.Module) -> Iterator[int]:
    """Yield the number of entries of each matrix that multiplies a token's vector."""
    from torch import nn

    from hessblocks.blocks import ReparametrisedLinear

    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield module.weight.numel()
        elif isinstance(module, ReparametrisedLinear):
            yield module.update.numel()


def _millions(count: int) -> str:
    """Format a count in millions; below 100,000 in full."""
    return f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,}"
