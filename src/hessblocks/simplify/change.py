"""Change a layer: take heads, units or attention away, and refit what writes the stream.

Each output matrix is refitted by ridge regression: its inputs are those of the changed model, its
targets the states of the original, and a token counts as 1 / ‖state‖², since the next norm divides
by it. So a refit also corrects what the layers before it did.

Letters: S sequences, T tokens of each, N tokens in all, I inputs of a matrix, K kept inputs, D
width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hessblocks.blocks import Attention, BlockConfig, Dense
from hessblocks.models import HessblocksForCausalLM
from hessblocks.simplify.least_squares import Refit
from hessblocks.simplify.passes import Pass, outputs_of
from hessblocks.simplify.place import OUTPUT, PROJECTION, READ, Candidate, Place, edited

SINK = "attention.sink.scores"
SKIP = "attention_branch.skip"


@dataclass(frozen=True, kw_only=True)
class LayerChange:
    """What goes from a layer."""

    layer: bool = False
    """Whether the whole layer goes."""
    attention: str = "kept"
    """kept; linear: a linear map of the normed state replaces it; gone."""
    groups: int = 0
    """Number of groups of heads that go; the heads of a group share keys and values."""
    units: int = 0
    """Number of the MLP's units that go."""

    @property
    def numbers(self) -> dict[str, int]:
        """Kind of removal → how many of it go; those that do not go are left out."""
        attention = {"gone": "attention", "linear": "linear map"}.get(self.attention, "")
        every = {"layer": self.layer, attention: 1, "heads": self.groups, "mlp units": self.units}
        return {kind: number for kind, number in every.items() if kind and number}


@torch.no_grad()
def changed(at: Place, change: LayerChange, kind: str = "changed") -> Candidate:
    """Make the changed layer.

    Args:
        at: layer of the original model, with its states and those of the changed model.
        change: what goes.
        kind: name of the candidate.

    Returns:
        The candidate.

    Cost: a pass of the original layer and one of the changed layer over the text, and for each
        refitted matrix 14 solutions by Cholesky factors.
    """
    if change.layer:
        return at.candidate(kind, None)
    pair = _pair(at, change, everything=False)
    return at.candidate(kind, pair.block, pair.state)


def _pair(at: Place, change: LayerChange, *, everything: bool) -> _Pair:
    """Change a layer; `everything`: refit also the output matrices of parts that stay whole."""
    pair = _Pair(at)
    if change.groups or change.attention != "kept" or (everything and at.dense(PROJECTION)):
        pair.refit_attention(change)
    alone = change.attention == "gone" and at.dense(OUTPUT)
    if change.units or alone or (everything and at.dense(OUTPUT)):
        pair.refit_mlp(change.units)
    return pair


@torch.no_grad()
def one_pass(
    model: HessblocksForCausalLM, text: Pass, changes: Mapping[int, LayerChange]
) -> HessblocksForCausalLM:
    """Change layers in order, and refit all output matrices towards the original's states.

    Args:
        model: original model, which stays as it is.
        text: its states on the fitting text.
        changes: layer → what goes from it.

    Returns:
        The changed model, in evaluation mode.

    Cost: about four passes over the text, and two refits a layer.
    """
    x, candidates = text.states[0], list[Candidate]()
    for index in range(model.config.depth):
        at = Place(model=model, index=index, text=text, now=x)
        change = changes.get(index, LayerChange())
        if change.layer:
            candidates.append(at.candidate("changed", None))
            continue
        pair = _pair(at, change, everything=True)
        candidates.append(at.candidate("changed", pair.block, pair.state))
        x = pair.output()
    return edited(model, *candidates)


class _Pair:
    """A layer on the original's states, and the layer that it becomes on the changed states."""

    def __init__(self, at: Place) -> None:
        self.at, self.block, self.state = at, at.block, at.state
        self.module, self.after = at.layer, at.text.states[at.index + 1]
        names = ["attention_branch", PROJECTION] if at.layer.attention is not None else []
        names += [OUTPUT] if at.layer.has_mlp else []
        parts = ("attention_branch", "mlp_branch")
        branches: list[Any] = [getattr(at.layer, part, None) for part in parts]
        self.plain = not at.layer.post and all(
            isinstance(branch.norm, nn.Identity) and branch.gain != 0
            for branch in branches
            if branch
        )
        """Whether the stream is linear in the outputs of both sub-blocks."""
        self.wanted: dict[str, Tensor] = {}
        if not self.plain:
            calls, _ = outputs_of(at.layer, names, at.original, at.text.context)
            self.wanted = {name: output for name, (_, output) in calls.items()}
        elif at.layer.attention is not None:
            attended = at.layer.attention(at.layer.attention_norm(at.original), at.text.context)
            self.wanted["attention_branch"] = branches[0](attended, at.original)
        self.middle = self.wanted.get("attention_branch", at.original)
        """Original's state between attention and MLP."""
        self._output: Tensor | None = None

    def refit_attention(self, change: LayerChange) -> None:
        """Change the attention."""
        at, block = self.at, self.block
        if change.attention == "gone":
            self.block, self.state = _without_attention(block, self.state)
        elif change.attention == "linear":
            inputs = self._read()
            bias = at.layer.get_submodule(PROJECTION).bias is not None
            zero = inputs.new_zeros(block.width + bias, block.width)
            weight = self._refit(PROJECTION, inputs).solve(zero)
            rest = {name: v for name, v in self.state.items() if "attention." not in name}
            self.state = rest | at.named(PROJECTION, weight)
            mapped = Attention(scores="none", projection=Dense(bias=bias))
            self.block = block.replace(attention=mapped)
        else:
            context = at.text.context
            calls, _ = outputs_of(self.module.attention, ["projection"], self._read(), context)
            mixed = calls["projection"][0]
            if change.groups:
                self._cut_heads(mixed, change.groups)
            else:
                weight, _ = at.refitted(PROJECTION, self._refit(PROJECTION, mixed))
                self.state |= at.named(PROJECTION, weight)
        self.module = at.built(self.block, self.state)

    def output(self) -> Tensor:
        """Compute the changed layer's output on the changed states."""
        if self._output is None:
            layer = self.at.built(self.block, self.state)
            self._output = layer(self.at.stream, self.at.text.context)
        return self._output

    def _read(self) -> Tensor:
        """Compute the input of the attention in the changed model."""
        x = self.at.stream
        normed: Tensor = x if self.module.post else self.module.attention_norm(x)
        return normed

    def _cut_heads(self, mixed: Tensor, gone: int) -> None:
        """Remove groups one by one, each time the one that the refitted projection misses least."""
        at, block = self.at, self.block
        groups, width = block.resolved_key_value_heads, block.resolved_head_width
        refit, left = self._refit(PROJECTION, mixed), list(range(groups))

        def entries(heads: int, remaining: list[int]) -> Tensor:
            """List the entries of the remaining groups, of all that so many heads have."""
            every = torch.arange(heads * width, device=mixed.device)
            return every[torch.isin(every // (len(every) // groups), every.new_tensor(remaining))]

        def missed(group: int) -> float:
            inputs = entries(block.heads, [number for number in left if number != group])
            return refit.whole.error(*at.refitted(PROJECTION, refit, inputs))

        for _ in range(gone):
            left.remove(min(left, key=missed))
        of_queries, of_keys = entries(block.heads, left), entries(groups, left)
        for name, rows in zip(READ, (of_queries, of_keys, of_keys), strict=True):
            self.state |= _cut(self.state, f"attention.{name}", rows)
        if SINK in self.state:
            self.state[SINK] = self.state[SINK][of_queries[::width] // width]
        self.state |= at.named(PROJECTION, at.refitted(PROJECTION, refit, of_queries)[0])
        heads = block.heads // groups * len(left)
        groups = len(left)
        self.block = block.replace(
            heads=heads,
            key_value_heads=None if heads == groups else groups,
            head_width=None if width * heads == block.width else width,
        )

    def refit_mlp(self, gone: int) -> None:
        """Remove the units with the smallest output on the text, and refit the output matrix."""
        at, name = self.at, "attention_branch"
        names = [OUTPUT, *([name] if self.module.attention is not None else [])]
        stream = at.stream
        calls, output = outputs_of(self.module, names, stream, at.text.context)
        hidden, before = calls[OUTPUT]
        if name in calls:
            stream = calls[name][1]
        elif at.layer.parallel:  # the skip of attention has become that of the MLP
            stream = at.layer.attention_branch.skip * stream
        units = None
        if gone:
            size = (hidden * _weights(self.after)[..., None].sqrt()).flatten(0, 1)
            size = size.double().square().sum(0)
            size *= self.state[f"{OUTPUT}.weight"].double().square().sum(0)
            units = size.topk(len(size) - gone).indices.sort().values
            for reader in at.unit_readers:
                self.state |= _cut(self.state, reader, units)
            self.block = self.block.replace(mlp_width=len(units))
            hidden = hidden[..., units]
        fit = self._refit(OUTPUT, hidden, stream)
        new = at.named(OUTPUT, at.refitted(OUTPUT, fit, units, cut=True)[0])
        self.state |= new
        if self.plain:  # without another run of the layer
            now = F.linear(hidden, new[f"{OUTPUT}.weight"], new.get(f"{OUTPUT}.bias"))
            self._output = output + self.module.mlp_branch.gain * (now - before)

    def _refit(self, name: str, inputs: Tensor, stream: Any = None) -> Refit:
        """Prepare the refit of an output matrix to the original's states; `stream`: the MLP's."""
        at, first = self.at, name == PROJECTION
        branch = at.layer.attention_branch if first else at.layer.mlp_branch
        after, now = (self.middle, at.stream) if first else (self.after, stream)
        if self.plain:
            skip = 1.0 if at.layer.parallel and not first else branch.skip
            target = (after - skip * now) / branch.gain
        else:
            target = self.wanted[name]
        bias = at.layer.get_submodule(name).bias is not None  # an input of ones
        rows = F.pad(inputs.flatten(0, 1), (0, int(bias)), value=1.0)
        return Refit(rows, target.flatten(0, 1), _weights(after).flatten())


def _weights(states: Float[Tensor, "S T D"]) -> Float[Tensor, "S T"]:
    """Weigh tokens by 1 / ‖state‖²."""
    return 1 / states.square().mean(-1).clamp(min=torch.finfo(states.dtype).tiny)


def _without_attention(
    block: BlockConfig, state: dict[str, Tensor]
) -> tuple[BlockConfig, dict[str, Tensor]]:
    parallel, skip = block.layout == "parallel", block.attention_branch
    if parallel and block.mlp_norm is None:
        norms = {k: v for k, v in state.items() if k.startswith("attention_norm.")}
        state |= {name.replace("attention", "mlp", 1): v for name, v in norms.items()}
    fields: dict[str, Any] = {"layout": "sequential", "mlp_norm": block.mlp_norm or block.norm}
    if parallel:
        fields["mlp_branch"] = block.mlp_branch.replace(
            skip=skip.skip, trainable_skip=skip.trainable_skip
        )
        state |= {k.replace("attention", "mlp"): state[k] for k in state if k.endswith(SKIP)}
    return block.replace(sub_blocks="mlp", **fields), state


def _cut(
    state: Mapping[str, Tensor], name: str, rows: Int[Tensor, " K"]
) -> dict[str, Float[Tensor, "..."]]:
    """Return weight and bias of a matrix, with only these outputs."""
    return {end: state[end][rows] for end in (f"{name}.weight", f"{name}.bias") if end in state}
