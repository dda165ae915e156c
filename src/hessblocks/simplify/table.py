"""Build the table of removals: measured KL divergence, and what is saved.

Letters: S sequences to fit on, H held-out sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from hessblocks.blocks import Shared, UnfitPartsError
from hessblocks.errors import ArgumentError, check_name
from hessblocks.models import HessblocksForCausalLM
from hessblocks.simplify.change import LayerChange, changed
from hessblocks.simplify.passes import Cost, Held, Pass
from hessblocks.simplify.place import OUTPUT, PROJECTION, READ, Candidate, Place, check_layers
from hessblocks.storage import Store, Tabular

SHARE = 0.25
"""Share of the units that the table of removals prices."""
STEPS = (64, 32, 1)
"""Numbers of units whose multiples remain: the first of which the layer has four or more."""


def unit_step(units: int) -> int:
    """Return the number whose multiples remain of so many units: 64, in narrow layers 32 or 1."""
    return next(step for step in STEPS if units >= 4 * step or step == 1)


def layer(at: Place) -> LayerChange | None:
    """Remove the layer."""
    return LayerChange(layer=True) if _others_attend(at) else None


def attention(at: Place) -> LayerChange | None:
    """Remove the attention of the layer."""
    return LayerChange(attention="gone") if _has_attention(at) and _others_attend(at) else None


def linear_map(at: Place) -> LayerChange | None:
    """Replace the attention of the layer by its best linear map, without mixing of tokens."""
    return LayerChange(attention="linear") if attention(at) and at.dense(PROJECTION) else None


def heads(at: Place) -> LayerChange | None:
    """Remove a group of heads with shared keys and values."""
    block, part = at.block, at.block.attention
    if not _has_attention(at) or block.resolved_key_value_heads == 1 or block.position.biased:
        return None  # ALiBi has a slope per head
    dense = at.dense(*(f"attention.{name}" for name in READ), PROJECTION)
    plain = part.shaping is None and part.gate is None and part.query_key != "one-matrix"
    return LayerChange(groups=1) if dense and plain else None


def units(at: Place) -> LayerChange | None:
    """Remove a quarter of the MLP's units."""
    if at.block.sub_blocks == "attention" or not at.dense(*at.unit_readers, OUTPUT):
        return None
    width = at.block.resolved_mlp_width
    step = unit_step(width)
    gone = width - int((1 - SHARE) * width) // step * step
    return LayerChange(units=gone) if 0 < gone < width else None


Kind = Callable[[Place], LayerChange | None]
KINDS: dict[str, Kind] = {
    "layer": layer,
    "attention": attention,
    "linear map": linear_map,
    "heads": heads,
    "mlp units": units,
}
"""Name → kind of removal, in the order of the table."""


def _has_attention(at: Place) -> bool:
    return at.block.sub_blocks == "both" and at.block.attends


def _others_attend(at: Place) -> bool:
    blocks = enumerate(at.model.config.blocks)
    return any(block.attends for index, block in blocks if index != at.index)


Row = dict[str, Any]
LEAST_SAVED = 1e-4
"""Smallest saved share of the parameters for which nats per percent are computed."""
COLUMNS = (
    "kind", "layer", "kl", "kl_error", "loss", "loss_error", "parameters", "share", "operations",
    "cache", "nats_per_percent",
)  # fmt: skip
"""Columns in their order, which rows from a store do not keep."""
FEWEST_SEQUENCES = 4
"""Fewest held-out sequences for a standard error."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Removals(Tabular):
    """Table of removals, each made alone in the original model."""

    rows_alone = True
    rows: tuple[Row, ...]
    """Measurements, one row per removal."""

    def to_rows(self) -> list[Row]:
        """List the rows: kind, layer, KL and loss with errors, what is saved."""
        return [{name: row[name] for name in COLUMNS} for row in self.rows]

    def __str__(self) -> str:
        """Count the removals, and name the cheapest."""
        saving = [row for row in self.rows if row["nats_per_percent"] is not None]
        text = f"{len(self.rows)} removals"
        if saving:
            best = min(saving, key=lambda row: row["nats_per_percent"])
            text += (
                f"; cheapest for what it saves: {best['kind']} of layer {best['layer']}, "
                f"{best['kl']:.3g} ± {best['kl_error']:.1g} nats for {best['share']:.2%}"
            )
        if unclear := sum(row["kl"] < 2 * row["kl_error"] for row in self.rows):
            text += f"; {unclear} cost less than two errors over text"
        return text


def candidates(
    model: HessblocksForCausalLM,
    text: Pass,
    kinds: Collection[str] = (),
    layers: Collection[int] = (),
) -> Iterator[Candidate]:
    """Build all candidates for removal, layer by layer.

    Args:
        model: model made of blocks.
        text: hidden states of this model on the text that weights are refitted to.
        kinds: kinds of removal, names of `KINDS`; empty: all.
        layers: numbers of the layers; empty: all.

    Yields:
        Each candidate; none for the first layer if other layers use its weights.
    """
    for index in layers or range(model.config.depth):
        at = Place(model=model, index=index, text=text)
        if index == 0 and first_layer_is_shared(model):
            continue
        for kind in dict.fromkeys(kinds or KINDS):
            if change := KINDS[kind](at):
                with suppress(UnfitPartsError):  # the parts that are left make no valid block
                    yield changed(at, change, kind)


def first_layer_is_shared(model: HessblocksForCausalLM) -> bool:
    """Tell whether any layer uses weights of the first."""
    parts = (block.attention for block in model.config.blocks)
    return any(isinstance(w, Shared) for part in parts for w in (part.query, part.key, part.value))


def measure_removals(
    model: HessblocksForCausalLM,
    text: Int[Tensor, "S T"],
    held_out: Int[Tensor, "H T"],
    *,
    kinds: Collection[str] = (),
    store: Store | None = None,
    done: Callable[[int, int], None] | None = None,
) -> Removals:
    """Measure what each removal costs alone.

    Args:
        model: model made of blocks, such as `hb.from_pretrained_blocks` returns; it stays as it is.
        text: token ids that weights are fitted to; more tokens than the model is wide.
        held_out: token ids of other text to measure on, at least 4 sequences, as long as those of
            `text`.
        kinds: kinds of removal, names of `KINDS`; empty: all.
        store: store of an earlier call with the same arguments, to resume from.
        done: called after each layer with the number of finished layers and of all layers.

    Returns:
        The table, one row per removal.

    Raises:
        ArgumentError: the model is not made of blocks, a layer depends on its place, a kind is
            unknown, or a text is too short or has no token ids.
        RunError: the loss of the model is not finite, or its perplexity is too large for a number.

    Cost: for each removal, a forward pass over the held-out text from its layer on. For each
        replaced weight, a pass of its layer's attention over `text` and a least-squares solution.
    """
    check_removals(model, text, held_out, kinds)
    fitted, judged = Pass(model, text), Held(model, held_out)
    total = sum(parameter.numel() for parameter in model.parameters())
    layers, rows = list(model.model.layers), list[Mapping[str, Any]]()

    def measured(layer: int) -> list[Row]:
        return [
            _row(candidate, judged.cost([*candidate.modules, *layers[layer + 1 :]], layer), total)
            for candidate in candidates(model, fitted, kinds, [layer])
        ]

    for layer in range(len(layers)):
        key = f"layer {layer}"
        record = store is not None and (store.get(key) or store.add(key, measured(layer)))
        rows += record.rows if record else measured(layer)
        if done is not None:
            done(layer + 1, len(layers))
    return Removals(rows=tuple(map(dict, rows)))


def _row(candidate: Candidate, cost: Cost, total: int) -> Row:
    share = candidate.parameters / total
    return {
        "kind": candidate.kind,
        "layer": candidate.layer,
        "kl": cost.kl.value,
        "kl_error": cost.kl.standard_error,
        "loss": cost.loss.value,
        "loss_error": cost.loss.standard_error,
        "parameters": candidate.parameters,
        "share": share,
        "operations": candidate.operations,
        "cache": candidate.cache,
        "nats_per_percent": cost.kl.value / (100 * share) if share > LEAST_SAVED else None,
    }


def check_removals(
    model: Any, text: Int[Tensor, "S T"], held_out: Int[Tensor, "H T"], kinds: Collection[str] = ()
) -> None:
    """Refuse a model, texts or kinds that cannot be measured.

    Args:
        model: model to remove parts of.
        text: token ids that weights are fitted to.
        held_out: token ids that removals are measured on.
        kinds: kinds of removal, by name.

    Raises:
        ArgumentError: the model is not made of blocks, a layer depends on its place, a kind is
            unknown, or a text is too short or has no token ids.
    """
    check_layers(model)
    if isinstance(kinds, str):
        raise ArgumentError(f"kinds: expected several names, got one; write [{kinds!r}]")
    for kind in kinds:
        check_name("kind", kind, KINDS)
    for name, tokens in (("text", text), ("held_out", held_out)):
        if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape[1] < 2:
            shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ArgumentError(
                f"{name}: expected token ids of shape (sequences, tokens), 2 tokens or more, got "
                f"{shape}"
            )
    if text.numel() <= (width := model.config.hidden_size):
        raise ArgumentError(
            f"text: {text.numel()} tokens are too few to fit weights of {width} inputs; give more"
        )
    if len(held_out) < FEWEST_SEQUENCES:
        raise ArgumentError(
            f"held_out: {len(held_out)} sequences are too few for an error bar; give at "
            f"least {FEWEST_SEQUENCES}"
        )
