"""Load the pretrained model and texts on which `simplify-pretrained` compares methods.

Letters: S sequences, T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hessblocks.data import Windows, cache_root, documents_of, encoded
from hessblocks.models import HessblocksForCausalLM, fingerprint, from_pretrained_blocks
from hessblocks.settings import SimplifySettings
from hessblocks.simplify import (
    Held,
    Pass,
    Removals,
    candidates,
    edited,
    heal,
    measure_removals,
    text_parts,
)
from hessblocks.storage import held, mended_store
from hessblocks_studies.data import load_docstrings, load_packaged

REVISION = 2
"""Revision; increased when the plan or another method gives other numbers than before."""
TINY = "tiny"
"""Small Llama with random weights, on random tokens."""
JUDGED = 16
"""Number of windows of docstrings that judge all methods."""
SEED = 0
"""Seed of the windows, equal for all methods."""
TURNS = 2
"""Number of timings of each model; the original and a simplified model take turns."""


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

    @property
    def folder(self) -> Path:
        """Folder of the model's table, so that a killed run continues."""
        digest = sha256(fingerprint(self.original).encode())
        for tokens in (self.text.tokens, self.choosing.tokens):
            digest.update(tokens.numpy().tobytes())
        return cache_root() / f"simplify-pretrained-{REVISION}-{digest.hexdigest()[:16]}"

    @contextmanager
    def table(self) -> Iterator[Removals]:
        """Measure or load each removal alone; the store is locked meanwhile."""
        with held(self.folder):
            store = mended_store(self.folder)
            texts = (self.text.tokens, self.choosing.tokens)
            yield measure_removals(self.original, *texts, store=store)

    def without(self, layers: Sequence[int]) -> HessblocksForCausalLM:
        """Remove whole layers."""
        return edited(self.original, *candidates(self.original, self.text, ["layer"], layers))

    def healed(self, model: HessblocksForCausalLM, steps: int) -> PreTrainedModel:
        """Train all layers of a copy to predict as the original does."""
        return heal(model, self.original, self.healing, layers=(), steps=steps)

    def better(self, *models: HessblocksForCausalLM) -> HessblocksForCausalLM:
        """Choose the model with the lowest KL divergence on the choosing text."""
        return min(
            models, key=lambda model: self.choosing.cost(list(model.model.layers), 0).kl.value
        )

    def tokens_a_second(self, model: HessblocksForCausalLM) -> tuple[float, float]:
        """Measure tokens per second of processor time for the original and a model, in turns."""
        tokens = self.judging.tokens[:4]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            for timed, seconds in zip((self.original, model), times, strict=True):
                start = time.process_time()
                with torch.no_grad():
                    timed.model(input_ids=tokens, use_cache=False)
                seconds.append(time.process_time() - start)
        before, after = (tokens.numel() / min(seconds) for seconds in times)
        return before, after


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

    model, tokenizer = load_packaged(package, "simplify-pretrained")
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
