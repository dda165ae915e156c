"""Build candidates for the removal of parts of a layer, and put them into a model.

Letters: N tokens, I inputs of a matrix, K kept inputs, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessblocks.blocks import BlockConfig, Dense, SharedLinear
from hessblocks.errors import ArgumentError
from hessblocks.models import HessblocksForCausalLM, Layer
from hessblocks.simplify.least_squares import Refit
from hessblocks.simplify.passes import Pass

State = Mapping[str, Float[Tensor, "..."]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """Removal at one layer: the layer in another form, or without it."""

    kind: str
    """Kind of the removal."""
    layer: int
    """Index of the layer in the current model."""
    block: BlockConfig | None
    """New configuration of the layer; None if the layer is removed."""
    module: Layer | None
    """New module of the layer; None if the layer is removed."""
    parameters: int
    """Number of parameters saved."""
    operations: float
    """Floating-point operations saved per token: two per matrix entry, and those of attention over
    half of a sequence of the text."""
    cache: int
    """Entries of the key-value cache saved per token."""

    @property
    def modules(self) -> list[Layer]:
        """New layer as a list; empty if the layer is removed."""
        return [] if self.module is None else [self.module]


Kind = Callable[..., Candidate | None]
"""Function from a `Place` to a candidate; None if the layer lacks the part to remove."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Layer of a model, with hidden states of a text to refit weights on."""

    model: HessblocksForCausalLM
    """Current model."""
    index: int
    """Index of the layer."""
    text: Pass
    """Hidden states before each layer of the model on the text."""

    @property
    def layer(self) -> Any:
        """Module of the layer."""
        return self.model.model.layers[self.index]

    @property
    def block(self) -> BlockConfig:
        """Configuration of the layer."""
        return self.model.config.blocks[self.index]

    @property
    def state(self) -> dict[str, Float[Tensor, "..."]]:
        """Weights of the layer by name."""
        return dict(self.layer.state_dict())

    def dense(self, *names: str) -> bool:
        """Tell whether the layer has these parts (`attention.value`), each as a dense matrix."""
        parts = (("attention", self.layer.attention), ("mlp", getattr(self.layer, "mlp", None)))
        held = {name for name, module in parts if module is not None}
        return all(
            name.partition(".")[0] in held
            and isinstance(self.layer.get_submodule(name), nn.Linear)
            and isinstance(_slot(self.block, name), Dense)
            for name in names
        )

    def built(self, block: BlockConfig, state: State) -> Layer:
        """Build the layer with another configuration; it uses the given weights without a copy."""
        with torch.device("meta"):
            made = Layer(block, self.index, self.model.config.depth)
        made.load_state_dict({name: state[name] for name in made.state_dict()}, assign=True)
        first: Any = self.model.model.layers[0]
        made.share(made if self.index == 0 else first)
        return made.eval()

    def candidate(
        self, kind: str, block: BlockConfig | None, state: State | None = None
    ) -> Candidate:
        """Make a candidate.

        Args:
            kind: name of the kind of removal.
            block: new configuration of the layer; None: remove the layer.
            state: new weights that differ from the layer's, by name in the layer.

        Returns:
            The candidate, with its savings.
        """
        made = None if block is None else self.built(block, {**self.state, **(state or {})})
        tokens = self.text.tokens.shape[1]
        saved = [
            one - other
            for one, other in zip(_sizes(self.layer, tokens), _sizes(made, tokens), strict=True)
        ]
        return Candidate(
            kind=kind,
            layer=self.index,
            block=block,
            module=made,
            parameters=int(saved[0]),
            operations=saved[1],
            cache=int(saved[2]),
        )

    @torch.no_grad()
    def projection_pairs(self, layer: Any) -> tuple[Float[Tensor, "N I"], Float[Tensor, "N D"]]:
        """Run the attention of `layer` on the hidden states before this layer.

        Returns:
            Inputs and outputs of the projection.
        """
        x = self.text.states[self.index]
        inputs = x if layer.post else layer.attention_norm(x)
        call = (inputs, self.text.context)
        return _inputs_and_outputs(layer.attention.projection, lambda: layer.attention(*call))

    @torch.no_grad()
    def output_pairs(self) -> tuple[Float[Tensor, "N I"], Float[Tensor, "N D"]]:
        """Run the layer on the hidden states before it.

        Returns:
            Inputs and outputs of the MLP's output matrix.
        """
        x = self.text.states[self.index]
        return _inputs_and_outputs(self.layer.mlp.output, lambda: self.layer(x, self.text.context))

    def with_ones(self, name: str, x: Float[Tensor, "N I"]) -> Float[Tensor, "N inputs"]:
        """Append an input of ones if the matrix `name` has a bias."""
        if self.layer.get_submodule(name).bias is None:
            return x
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)

    def refitted(
        self, name: str, equations: Refit, kept: Int[Tensor, " K"] | None = None
    ) -> dict[str, Float[Tensor, "..."]]:
        """Solve for the matrix `name` and its bias, on the kept inputs.

        Returns:
            Weight (D, K) and bias (D) by name in the layer.
        """
        module = self.layer.get_submodule(name)
        weight = module.weight.detach()
        old = weight.T if kept is None else weight.T[kept]
        if module.bias is None:
            return {f"{name}.weight": equations.solve(old, kept).T.contiguous().to(weight)}
        rows = torch.arange(len(old), device=old.device) if kept is None else kept
        rows = torch.cat([rows, rows.new_tensor([weight.shape[1]])])
        found = equations.solve(torch.cat([old, module.bias.detach()[None]]), rows).to(weight)
        return {f"{name}.weight": found[:-1].T.contiguous(), f"{name}.bias": found[-1]}


def edited(model: HessblocksForCausalLM, *chosen: Candidate) -> HessblocksForCausalLM:
    """Apply candidates to a model.

    Args:
        model: original model, which is not modified; unchanged weights are shared.
        *chosen: candidates for this model, at most one per layer.

    Returns:
        The changed model, with a new configuration, in evaluation mode.

    Raises:
        ArgumentError: two candidates are of one layer.
    """
    if len({one.layer for one in chosen}) < len(chosen):
        raise ArgumentError(
            "chosen: expected candidates of different layers, got two of one; make one of them, "
            "then the other for the changed model"
        )
    own: list[BlockConfig] = list(model.config.blocks)
    layers: list[Any] = list(model.model.layers)
    # from the last layer on: a removal shifts the layers after it
    for one in sorted(chosen, key=lambda one: -one.layer):
        at = slice(one.layer, one.layer + 1)
        own[at] = [] if one.block is None else [one.block]
        layers[at] = one.modules
    config = copy.deepcopy(model.config)
    config.depth, config.preset = len(own), None
    config.block = [block.to_dict() for block in own]
    state = {name: value for name, value in model.state_dict().items() if ".layers." not in name}
    for number, layer in enumerate(layers):
        state |= {f"model.layers.{number}.{name}": v for name, v in layer.state_dict().items()}
    with torch.device("meta"):
        made = type(model)(config)
    made.load_state_dict(state, assign=True)
    made.tie_weights()
    made.generation_config = copy.deepcopy(model.generation_config)
    return cast(HessblocksForCausalLM, made.eval())


def saved_between(before: Any, after: Any, tokens: int) -> dict[str, float]:
    """Compute the shares that a smaller model saves, without embeddings and head.

    Args:
        before: the larger model.
        after: the smaller model.
        tokens: length of a sequence, for the operations of attention.

    Returns:
        Saved shares of the parameters in layers, of the operations per token and of the cache.
    """
    sums = []
    for model in (before, after):
        each = [_sizes(layer, tokens) for layer in model.model.layers]
        sums.append([sum(column) for column in zip(*each, strict=True)])
    names = ("layer_parameters", "operations", "cache")
    return {name: 1 - b / a for name, a, b in zip(names, *sums, strict=True)}


def check_layers(model: Any) -> None:
    """Refuse a model whose layers cannot be removed or moved.

    Raises:
        ArgumentError: the model has another class; or a block has a part for the first layer alone,
            reads states from before its input, or has a gain that depends on the depth.
    """
    if not isinstance(model, HessblocksForCausalLM):
        raise ArgumentError(
            f"model: expected a causal language model of blocks, got {type(model).__name__}; "
            "hb.from_pretrained_blocks makes one of a pretrained model"
        )
    for layer, block in enumerate(model.config.blocks):
        branches = (block.attention_branch, block.mlp_branch)
        odd = block.first_norm or block.attention.first_value or len(block.carried) > 1
        if odd or any(branch.over_sqrt_depth for branch in branches):
            raise ArgumentError(
                f"model: layer {layer} has a part for the first layer alone, one that reads what "
                "came before its input (embedding_skip, value_residual), or a gain by the number "
                "of layers, so that layers cannot be told apart from their places"
            )


def _slot(block: BlockConfig, name: str) -> object:
    """Return the slot that configures a module; the gate of an MLP uses the slot of its input."""
    part, _, slot = name.partition(".")
    return getattr(getattr(block, part), "input" if name == "mlp.gate" else slot)


def _sizes(layer: Any, tokens: int) -> tuple[float, float, float]:
    """Count parameters, and per token operations and cache entries."""
    if layer is None:
        return 0, 0, 0
    weights = list(layer.parameters())
    shared = [m.source.weight for m in layer.modules() if isinstance(m, SharedLinear)]
    operations = 2 * sum(weight.numel() for weight in (*weights, *shared) if weight.ndim > 1)
    cached, attention = 0, layer.attention
    if attention is not None:
        # scores and weighted values, two operations each, over half of the tokens
        operations += 2 * tokens * attention.heads * attention.head_width
        cached = 2 * attention.key_value_heads * attention.head_width
    return sum(weight.numel() for weight in weights), operations, cached


def _inputs_and_outputs(module: nn.Module, run: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    """Call `run`, and return inputs and outputs of a module in it, one row per token."""
    seen: list[Tensor] = []
    with module.register_forward_hook(
        lambda _, given, output: seen.extend((given[0].flatten(0, 1), output.flatten(0, 1)))
    ):
        run()
    return seen[0], seen[1]
