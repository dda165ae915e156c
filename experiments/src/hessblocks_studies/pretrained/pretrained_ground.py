"""Load the pretrained model and texts on which layers are changed.

Letters: S sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from hessblocks.data import Windows, documents_of, encoded
from hessblocks.models import HessblocksForCausalLM, from_pretrained_blocks
from hessblocks.settings import SimplifySettings
from hessblocks.simplify import (
    Held,
    Pass,
    text_parts,
)
from hessblocks_studies.data import load_docstrings, load_packaged

TINY = "tiny"
"""Small Llama with random weights, on random tokens."""
JUDGED = 16
"""Number of windows of docstrings that judge all changes."""
SEED = 0
"""Seed of the windows, equal for all changes."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Model of blocks, with its texts."""

    original: HessblocksForCausalLM
    """Original model."""
    text: Pass
    """Hidden states on the text for fits of weights."""
    choosing: Held
    """Text for the choice of variants and removals."""
    judging: Held
    """Docstrings for the final evaluation."""
    healing: Int[Tensor, "S T"]
    """All windows for healing."""


@cache
def ground(name: str) -> Ground:
    """Load a model and its texts.

    Args:
        name: `TINY`, or an installed package that contains a GGUF file.

    Returns:
        The model and its texts, equal for equal names.

    Raises:
        ArgumentError: no such package.
    """
    original, parts, judged = _tiny() if name == TINY else _real(name)
    fitted, chosen, _, healing = parts
    return Ground(
        original=original,
        text=Pass(original, fitted),
        choosing=Held(original, chosen),
        judging=Held(original, judged),
        healing=healing,
    )


def _real(package: str) -> tuple[HessblocksForCausalLM, Sequence[Tensor], Tensor]:
    from pydoc_data.topics import topics

    model, tokenizer = load_packaged(package, "simplified-runs")
    original = from_pretrained_blocks(model)
    settings = SimplifySettings(seed=SEED)
    parts = text_parts(original, tokenizer, documents_of("\n\n".join(topics.values())), settings)
    docstrings = (text.text for text in load_docstrings() if text.kind != "prose")
    ids = encoded(tokenizer, documents_of("\n\n".join(docstrings)))
    return original, parts, Windows(ids, settings.tokens).drawn(JUDGED, SEED)


def _tiny() -> tuple[HessblocksForCausalLM, Sequence[Tensor], Tensor]:
    sizes: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 6, "intermediate_size": 40}
    heads: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, vocab_size=37, initializer_range=0.3)
    generator = torch.Generator().manual_seed(SEED)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        llama = LlamaForCausalLM(config).eval()
    drawn = [torch.randint(37, (count, 12), generator=generator) for count in (20, 4, 4, 20, 4)]
    return from_pretrained_blocks(llama), drawn[:4], drawn[4]
