"""Convert pretrained models of known architectures to our blocks, and back."""

import copy
import re
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedModel

from hessblocks import storage
from hessblocks.architectures import ARCHITECTURES, OURS, heads_of
from hessblocks.blocks import (
    MLP,
    Attention,
    BlockConfig,
    Branch,
    Dense,
    LayerNorm,
    LearnedPosition,
    NoNorm,
    Norm,
    RMSNorm,
    RotaryPosition,
)
from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, RunError
from hessblocks.models.configuration import HessblocksConfig, described
from hessblocks.models.heads import HessblocksForCausalLM
from hessblocks.models.saved import load

ACTIVATIONS = {
    **{name: name for name in ("silu", "gelu", "relu")},
    "swish": "silu",
    "relu2": "relu-squared",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu-tanh"),
}
"""Our name of each activation, by transformers' name."""
READ = ("query", "key", "value")
SLIDING = "sliding_attention"


State = dict[str, Shaped[Tensor, "..."]]


def _fields(config: Any, norm: Norm) -> dict[str, Any]:
    """Return norms and sizes of a block, without sizes that equal their defaults."""
    width, heads = config.hidden_size, config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None)
    head_width = getattr(config, "head_dim", None)
    return {
        "width": width,
        "heads": heads,
        "key_value_heads": None if groups == heads else groups,
        "head_width": None if head_width == width / heads else head_width,
        "norm": norm,
        "final_norm": norm,
    }


def _attention(weight: Dense, **fields: Any) -> Attention:
    """Make an attention with one kind of weight, but for those that are given."""
    return Attention(**dict.fromkeys((*READ, "projection"), weight) | fields)


def _activation(config: Any, name: str) -> str:
    activation = getattr(config, name)
    if activation not in ACTIVATIONS:
        raise unfit(config, f"{name}={activation!r}; expected {' or '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def _rotary(config: Any) -> RotaryPosition:
    rope = config.rope_parameters
    if (kind := rope.get("rope_type", "default")) != "default":
        raise unfit(config, f"rope_type={kind!r}; expected rotary positions without scaling")
    share = rope.get("partial_rotary_factor", 1.0) if config.model_type == "gpt_neox" else 1.0
    return RotaryPosition(base=float(rope["rope_theta"]), share=float(share))


def _llama(config: Any) -> list[BlockConfig]:
    """Llama, Mistral, Qwen2 and Qwen3."""
    kind = config.model_type
    bias = bool(getattr(config, "attention_bias", kind == "qwen2"))
    norm = RMSNorm(eps=config.rms_norm_eps)
    hidden = Dense(bias=bool(getattr(config, "mlp_bias", False)))
    block = BlockConfig(
        **_fields(config, norm),
        mlp_width=config.intermediate_size,
        position=_rotary(config),
        attention=_attention(
            Dense(bias=bias),
            projection=Dense(bias=bias and kind != "qwen2"),
            query_key_norm=norm if kind == "qwen3" else NoNorm(),
        ),
        mlp=MLP(
            activation=_activation(config, "hidden_act"), gated=True, input=hidden, output=hidden
        ),
    )
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or [SLIDING] * config.num_hidden_layers
    windows = [window if kind == SLIDING else None for kind in types]
    return [block.replace(attention=block.attention.replace(window=size)) for size in windows]


def _gpt2(config: Any) -> list[BlockConfig]:
    if config.add_cross_attention:
        raise unfit(config, "add_cross_attention=True; expected False")
    norm, dense = LayerNorm(eps=config.layer_norm_epsilon), Dense(bias=True)
    block = BlockConfig(
        **_fields(config, norm),
        mlp_width=config.n_inner or 4 * config.n_embd,
        position=LearnedPosition(),
        attention=_attention(dense),
        mlp=MLP(activation=_activation(config, "activation_function"), input=dense, output=dense),
    )
    unscaled = 1.0 if config.scale_attn_weights else block.resolved_head_width**-0.5
    by_layer = config.scale_attn_by_inverse_layer_idx
    temperatures = [unscaled * (layer + 1 if by_layer else 1) for layer in range(config.n_layer)]
    return [
        block.replace(attention=block.attention.replace(temperature=tau)) for tau in temperatures
    ]


def _gpt_neox(config: Any) -> list[BlockConfig]:
    norm, dense = LayerNorm(eps=config.layer_norm_eps), Dense(bias=True)
    parallel = {"layout": "parallel", "mlp_norm": norm, "mlp_branch": Branch(skip=0.0)}
    block = BlockConfig(
        **_fields(config, norm) | (parallel if config.use_parallel_residual else {}),
        mlp_width=config.intermediate_size,
        position=_rotary(config),
        attention=_attention(Dense(bias=config.attention_bias)),
        mlp=MLP(activation=_activation(config, "hidden_act"), input=dense, output=dense),
    )
    return [block] * config.num_hidden_layers


BLOCKS: dict[str, Callable[[Any], list[BlockConfig]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _llama),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
"""By `model_type`, the function from a configuration to the block of each layer."""


def _blocks_of(config: Any) -> list[BlockConfig]:
    kind = getattr(config, "model_type", type(config).__name__)
    if kind not in BLOCKS:
        raise ArgumentError(
            f"model: a {kind} cannot become blocks; expected one of {', '.join(BLOCKS)}"
        )
    return BLOCKS[kind](config)


def _parts(
    name: str, weight: Shaped[Tensor, "..."], config: Any
) -> tuple[Shaped[Tensor, "..."], list[tuple[str, Int[Tensor, " rows"] | slice]]]:
    """View a weight as (outputs, inputs), and list our name and the rows of each of its parts."""
    architecture = ARCHITECTURES[config.model_type]
    module, _, end = name.rpartition(".")
    layer = re.match(r".*\.(\d+)\.", module)
    rows = weight.T if architecture.conv1d and layer and weight.ndim == 2 else weight
    stem = f"model.layers.{layer[1]}." if layer else ""
    for rule in architecture.rules:
        if re.fullmatch(rule.pattern, name) and ".attention." in rule.name:
            if rule.role:
                return rows, [(f"{stem}attention.{rule.role}.{end}", slice(None))]
            assert rule.packing is not None
            pieces = rule.packing(len(rows), heads_of(config))
            return rows, [(f"{stem}attention.{p.role}.{end}", p.indices) for p in pieces]
    ours = OURS.get(module[layer.end() :] if layer else module.rpartition(".")[2])
    return rows, [(f"{stem}{ours}.{end}", slice(None))] if ours else []


def _to_ours(state: State, config: Any) -> State:
    """Rename weights to our names; leave out weights without one."""
    ours: State = {}
    for name, weight in state.items():
        rows, parts = _parts(name, weight, config)
        ours |= {part: rows[indices] for part, indices in parts}
    return ours


def _from_ours(places: State, ours: State, config: Any) -> State:
    """Rename our weights to the names in `places`, of whose weights only shapes are used."""
    theirs: State = {}
    for name, shaped in places.items():
        if parts := _parts(name, shaped, config)[1]:
            like = ours[parts[0][0]]
            theirs[name] = torch.empty(shaped.shape, dtype=like.dtype, device=like.device)
            rows, _ = _parts(name, theirs[name], config)
            for part, indices in parts:
                rows[indices] = ours[part]
    return theirs


def unfit(config: Any, reason: str) -> ArgumentError:
    """Make an error about a part that our blocks do not support."""
    return ArgumentError(f"model: this {config.model_type} cannot become blocks: {reason}")


KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "vocab_size")
"""Fields of both configurations, which are copied."""
LEFT_OUT = ("_name_or_path", "architectures", "dtype", "transformers_version")
"""Fields without an effect on the model's function."""
SINGLE = torch.finfo(torch.float32).eps
"""Tolerance for transformers' norms and rotary angles, which are in float32 in any model."""


def from_pretrained_blocks(model_or_folder: PreTrainedModel | AnyPath) -> HessblocksForCausalLM:
    """Convert a pretrained language model to layers of `BlockConfig`, with its weights.

    Args:
        model_or_folder: a causal language model of transformers (Llama, Mistral, Qwen2, Qwen3,
            GPT-2 or GPT-NeoX); or a source for `hb.load`.

    Returns:
        A model of this library in evaluation mode, with the same dtype and device. It computes the
        same function, but has no dropout in training. Each layer has its own block.
        `save_pretrained`, `Trainer`, `generate` and `hb.Problem` support it like any other model.

    Raises:
        ArgumentError: another architecture (the message lists the known ones), or a part that our
            blocks do not support, such as scaled rotary positions.
        RunError: its logits differ from those of the given model.

    Cost: a second copy of the weights, and a forward pass of each over 16 tokens.

    Examples:
        >>> import transformers, hessblocks as hb
        >>> sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
        >>> config = transformers.LlamaConfig(num_attention_heads=2, vocab_size=20, **sizes)
        >>> model = hb.from_pretrained_blocks(transformers.LlamaForCausalLM(config))
        >>> [(block.mlp.activation, block.mlp.gated) for block in model.config.blocks]
        [('silu', True), ('silu', True)]
    """
    if isinstance(model_or_folder, HessblocksForCausalLM):
        raise ArgumentError("model: it is made of blocks already")
    loaded = isinstance(model_or_folder, PreTrainedModel)
    model: Any = model_or_folder if loaded else load(cast(AnyPath, model_or_folder))[0]
    blocks = _blocks_of(model.config)
    original = model.config.to_diff_dict()
    config = HessblocksConfig(
        depth=len(blocks),
        context=model.config.max_position_embeddings,
        block=described(blocks),
        embedding_std=model.config.initializer_range,
        family={name: value for name, value in original.items() if name not in LEFT_OUT},
        **{name: getattr(model.config, name) for name in KEPT},
    )
    state = _to_ours(model.state_dict(), model.config)
    converted = _with_state(HessblocksForCausalLM, config, state, model)
    _check_logits(model, converted)
    return cast(HessblocksForCausalLM, converted)


def to_family(model: PreTrainedModel) -> PreTrainedModel:
    """Convert a model from `from_pretrained_blocks` back to its architecture in transformers.

    Args:
        model: the model, perhaps trained further, or with fewer layers, heads or MLP units, as
            long as the family's configuration can say so: equally many in all layers.

    Returns:
        A model of transformers that computes the same function, in evaluation mode.

    Raises:
        ArgumentError: the model was not converted from a pretrained one, or its architecture does
            not support a layer; the message names the first.
        RunError: its logits differ from those of the given model.

    Cost: see `from_pretrained_blocks`.

    Examples:
        >>> import transformers, hessblocks as hb
        >>> sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
        >>> config = transformers.LlamaConfig(num_attention_heads=2, vocab_size=20, **sizes)
        >>> model = hb.from_pretrained_blocks(transformers.LlamaForCausalLM(config))
        >>> type(hb.to_family(model)).__name__  # trained further here, saved as Llama again
        'LlamaForCausalLM'
    """
    family = getattr(model.config, "family", None)
    if family is None:
        raise ArgumentError("model: expected a model that hb.from_pretrained_blocks made")
    blocks = model.config.blocks
    fields: dict[str, Any] = {name: getattr(model.config, name) for name in KEPT}
    fields["num_hidden_layers"] = len(blocks)
    if isinstance(blocks[0].position, LearnedPosition):
        fields["max_position_embeddings"] = model.config.context
    config: Any = AutoConfig.for_model(**family)
    storage.check_own_code("model: its family", config)
    if getattr(config, "layer_types", None):
        windows = (block.attention.window for block in blocks)
        config.layer_types = ["full_attention" if window is None else SLIDING for window in windows]
    for name, value in (fields | _sizes_that_differ(blocks[0], config)).items():
        setattr(config, name, value)
    for layer, (block, stated) in enumerate(zip(blocks, _blocks_of(config), strict=True)):
        if block != stated:
            stated_fields = stated.to_dict().items()
            name = next(name for name, value in stated_fields if block.to_dict()[name] != value)
            raise ArgumentError(
                f"model: the configuration of {config.model_type} has one {name} for all layers, "
                f"and layer {layer} has another; hb.to_gguf writes a Llama with layers of "
                "different sizes"
            )
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        places = AutoModelForCausalLM.from_config(config).state_dict()
    state = _from_ours(places, model.state_dict(), config)
    converted = _with_state(AutoModelForCausalLM.from_config, config, state, model)
    _check_logits(model, converted)
    return converted


def _sizes_that_differ(block: BlockConfig, config: Any) -> dict[str, int]:
    """Return the sizes of a block that a configuration has otherwise, under its names."""
    default = _blocks_of(config)[0]
    names = {
        "resolved_mlp_width": ("intermediate_size", "n_inner"),
        "heads": ("num_attention_heads",),
        "resolved_key_value_heads": ("num_key_value_heads",),
        "resolved_head_width": ("head_dim",),
    }
    changes: dict[str, int] = {}
    for size, fields in names.items():
        if (value := getattr(block, size)) != getattr(default, size):
            changes |= {name: value for name in fields if hasattr(config, name)}
    if block.heads != default.heads and config.model_type in ("qwen2", "mistral"):
        changes["head_dim"] = block.resolved_head_width  # else width / heads
    return changes


def _with_state(make: Any, config: Any, state: dict[str, Any], original: Any) -> PreTrainedModel:
    """Make a model with these weights; check that their names and shapes are the model's."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        converted: Any = make(config)
    converted.to(device=original.device, dtype=original.dtype)
    if foreign := sorted(converted.state_dict().keys() ^ state.keys()):
        raise ArgumentError(
            f"model: its weights are not those of its configuration ({foreign[0]} is the first of "
            f"{len(foreign)} that differ); remove what was added to it"
        )
    converted.load_state_dict(state)
    if isinstance(original, GenerationMixin):
        converted.generation_config = copy.deepcopy(original.generation_config)
    return cast(PreTrainedModel, converted.eval())


@torch.no_grad()
def _check_logits(original: PreTrainedModel, converted: PreTrainedModel) -> None:
    """Check that both models have the same logits, also for options that no rule of ours covers."""
    count = min(16, original.config.max_position_embeddings)
    tokens = (torch.arange(count, device=original.device)[None] * 31) % original.config.vocab_size
    modes = [(module, module.training) for module in original.modules()]
    try:
        expected, after = (m.eval()(input_ids=tokens).logits.float() for m in (original, converted))
    finally:
        for module, training in modes:
            module.training = training
    difference = float((after - expected).abs().max() / expected.abs().max())
    if not difference <= max(torch.finfo(original.dtype).eps, SINGLE) ** 0.5:
        raise RunError(
            f"model: rebuilt from its configuration, its logits differ by {difference:.1e} of the "
            "largest; undo what was changed in it after loading"
        )
