"""Build candidates for the removal of parts of a layer, and put them into a model.

Letters: S sequences, T tokens, K kept inputs, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
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
READ = ("query", "key", "value")
OUTPUT, PROJECTION = "mlp.output", "attention.projection"


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Layer of a model, with hidden states of a text to refit weights on."""

    model: HessblocksForCausalLM
    """Original model."""
    index: int
    """Index of the layer."""
    text: Pass
    """Hidden states before each layer of the original on the text."""
    now: Float[Tensor, "S T D"] | None = None
    """Hidden states before the layer in a model whose earlier layers have changed; None: the
    original's."""

    @property
    def original(self) -> Float[Tensor, "S T D"]:
        """Hidden states before the layer in the original."""
        return self.text.states[self.index]

    @property
    def stream(self) -> Float[Tensor, "S T D"]:
        """Hidden states before the layer in the changed model."""
        return self.original if self.now is None else self.now

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

    @property
    def unit_readers(self) -> list[str]:
        """Names of the matrices whose outputs are the MLP's units."""
        return ["mlp.input", *(["mlp.gate"] if self.block.mlp.gated else [])]

    def dense(self, *names: str) -> bool:
        """Tell whether the layer has these parts (`attention.value`), each as a dense matrix."""
        modules = dict(self.layer.named_modules())
        return all(
            isinstance(modules.get(name), nn.Linear) and isinstance(_slot(self.block, name), Dense)
            for name in names
        )

    def built(self, block: BlockConfig, state: State) -> Layer:
        """Build the layer with another configuration; it uses the given weights without a copy."""
        with torch.device("meta"):
            layer = Layer(block, self.index, self.model.config.depth)
        layer.load_state_dict({name: state[name] for name in layer.state_dict()}, assign=True)
        first: Any = self.model.model.layers[0]
        layer.share(layer if self.index == 0 else first)
        return layer.eval()

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
        module = None if block is None else self.built(block, {**self.state, **(state or {})})
        tokens = self.text.tokens.shape[1]
        sizes = zip(sizes_of(self.layer, tokens), sizes_of(module, tokens), strict=True)
        parameters, operations, cache = (before - after for before, after in sizes)
        return Candidate(
            kind=kind,
            layer=self.index,
            block=block,
            module=module,
            parameters=int(parameters),
            operations=operations,
            cache=int(cache),
        )

    def refitted(
        self,
        name: str,
        equations: Refit,
        inputs: Int[Tensor, " K"] | None = None,
        *,
        cut: bool = False,
    ) -> tuple[Float[Tensor, "rows D"], Int[Tensor, " rows"] | None]:
        """Solve for the matrix `name` and its bias, on the kept inputs.

        Args:
            name: output matrix.
            equations: its normal equations.
            inputs: indices of the kept inputs; None: all.
            cut: whether the equations are those of the kept inputs alone.

        Returns:
            Rows for the kept inputs and, if there is a bias, one for it; and their indices.
        """
        module = self.layer.get_submodule(name)
        old, rows = module.weight.detach().T, inputs
        if inputs is not None:
            bias = inputs.new_tensor([len(old)] * (module.bias is not None))
            old, rows = old[inputs], torch.cat([inputs, bias])
        if module.bias is not None:
            old = torch.cat([old, module.bias.detach()[None]])
        return equations.solve(old, None if cut else rows), rows

    def named(
        self, name: str, solution: Float[Tensor, "rows D"]
    ) -> dict[str, Float[Tensor, "..."]]:
        """Return weight (D, K) and bias (D) of the matrix `name` by name in the layer."""
        module = self.layer.get_submodule(name)
        solution = solution.to(module.weight)
        if module.bias is None:
            return {f"{name}.weight": solution.T.contiguous()}
        return {f"{name}.weight": solution[:-1].T.contiguous(), f"{name}.bias": solution[-1]}


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
    changed = {candidate.layer: (candidate.block, candidate.module) for candidate in chosen}
    if len(changed) < len(chosen):
        raise ArgumentError(
            "chosen: expected candidates of different layers, got two of one; apply one, then find "
            "the other among the candidates of the changed model"
        )
    before = enumerate(zip(model.config.blocks, model.model.layers, strict=True))
    after: Any = [changed.get(number, pair) for number, pair in before]
    after = [(block, layer) for block, layer in after if layer is not None]
    config = copy.deepcopy(model.config)
    config.depth, config.preset = len(after), None
    config.block = [block.to_dict() for block, _ in after]
    state = {name: value for name, value in model.state_dict().items() if ".layers." not in name}
    for number, (_, layer) in enumerate(after):
        state |= {f"model.layers.{number}.{name}": v for name, v in layer.state_dict().items()}
    with torch.device("meta"):
        made = type(model)(config)
    made.load_state_dict(state, assign=True)
    made.tie_weights()
    made.generation_config = copy.deepcopy(model.generation_config)
    return cast(HessblocksForCausalLM, made.eval())


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
        special = block.first_norm or block.attention.first_value or len(block.carried) > 1
        if special or any(branch.over_sqrt_depth for branch in branches):
            raise ArgumentError(
                f"model: layer {layer} depends on its index and cannot be removed or moved: it has "
                "a part for the first layer alone, one that reads what came before its input "
                "(embedding_skip, value_residual), or a gain by the number of layers"
            )


def _slot(block: BlockConfig, name: str) -> object:
    """Return the slot that configures a module; the gate of an MLP uses the slot of its input."""
    part, _, slot = name.partition(".")
    return getattr(getattr(block, part), "input" if name == "mlp.gate" else slot)


def sizes_of(layer: Any, tokens: int) -> tuple[float, float, float]:
    """Count parameters, and per token operations and cache entries, of a layer or of none."""
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
