"""The models of the Hessian paper: random weights of fixed size, data of size σ, the addition task.

All at initialisation. Weights are N(0, (0.8/√d)²) with d the width, embeddings and positions
N(0, σ²), each model drawn afresh from its own seed.

Source: Ormaniec, Dangel & Singh (2025), section 4, and the authors' notebook.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from hessblocks import blocks
from hessblocks.conventions import IGNORED
from hessblocks.curvature import LossFunction
from hessblocks.errors import check_name
from hessblocks.models import build
from hessblocks_studies.data import SYMBOLS

TOKENS = 18
"""Length of a sum of two numbers with 5 digits."""
GAIN = 0.8
"""Standard deviation of a weight, times √width."""


BLOCKS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax-mlp-biases": {
        "mlp": blocks.MLP(input=blocks.Dense(bias=True), output=blocks.Dense(bias=True))
    },
    "softmax-pre-ln": {"norm": blocks.LayerNorm(), "final_norm": blocks.LayerNorm()},
    "linear": {"attention": blocks.Attention(scores="linear")},
    "linear-alone": {
        "attention": blocks.Attention(scores="linear"),
        "attention_branch": blocks.Branch(skip=0.0),
        "mlp": blocks.MLP(output=blocks.Dense(init="zeros")),
        "mlp_width": 1,
    },
    "one-matrix": {"attention": blocks.Attention(query_key="one-matrix")},
    "one-matrix-linear": {"attention": blocks.Attention(query_key="one-matrix", scores="linear")},
}
"""Name → what is not plain: one softmax head as wide as the block, ReLU MLP of 4 widths, skips, no
norm. `linear-alone` is linear attention and nothing else: no skip, and an MLP whose output stays
zero."""


def weight_size(width: int) -> float:
    """Standard deviation of a weight, 0.8/√width."""
    return GAIN / math.sqrt(width)


def addition_model(
    block: str | blocks.BlockConfig, *, layers: int, width: int, sigma: float, seed: int
) -> PreTrainedModel:
    """A causal language model of sums in float64, untied head, drawn from `seed`.

    Args:
        block: a name in `BLOCKS`, or a block of that width.
        layers: how many.
        width: entries of a token's vector.
        sigma: standard deviation of embeddings and positions.
        seed: seed of all weights.

    Returns:
        The model, in evaluation mode.

    Raises:
        ArgumentError: an unknown block.
    """
    if isinstance(block, str):
        check_name("block", block, BLOCKS)
        plain = {
            "heads": 1,
            "norm": blocks.NoNorm(),
            "final_norm": blocks.NoNorm(),
            "position": blocks.LearnedPosition(),
        }
        block = blocks.preset("pre-ln", width=width, **{**plain, **BLOCKS[block]})
    model: PreTrainedModel = build(
        block,
        depth=layers,
        vocab_size=len(SYMBOLS),
        context=TOKENS,
        tie_word_embeddings=False,
    ).double()
    draw(model, width=width, sigma=sigma, seed=seed)
    model.set_attn_implementation("eager")  # fused kernels have no second derivative
    model.eval()
    return model


def draw(model: nn.Module, *, width: int, sigma: float, seed: int) -> None:
    """Draw every matrix of `model`: embeddings from N(0, σ²), others from N(0, (0.8/√width)²).

    What is zero stays zero.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=sigma, generator=generator)
        elif isinstance(module, nn.Linear) and module.weight.any():
            nn.init.normal_(module.weight, std=weight_size(width), generator=generator)


def one_hot_squares(outputs: Any, batch: Any) -> Float[Tensor, " entries"]:
    """(logit − one-hot)² of every class at every answer digit, (digits · classes,)."""
    logits = outputs.logits[:, :-1]
    labels = batch["labels"][:, 1:]
    valid = labels != IGNORED
    target = F.one_hot(labels[valid], logits.shape[-1])
    squares: Tensor = (logits[valid] - target).square()
    return squares.flatten()


def of_current_tokens(
    batch: Mapping[str, Int[Tensor, "sums tokens"]],
) -> dict[str, Int[Tensor, "sums tokens"]]:
    """The batch with the token that is read as target, in the place of the next one.

    The module of the authors' notebook does so: it cuts the targets as it cuts the outputs.

    Args:
        batch: `input_ids` and `labels`.

    Returns:
        The batch with labels shifted by one place; positions without a label keep none.
    """
    tokens, labels = batch["input_ids"], batch["labels"]
    before = tokens.roll(1, dims=1)
    return {"input_ids": tokens, "labels": torch.where(labels == IGNORED, labels, before)}


LOSSES: dict[str, str | LossFunction] = {"cross-entropy": "causal-lm", "squares": one_hot_squares}
"""Name → loss; both are means, over the answer digits and over their classes where there are
several."""
