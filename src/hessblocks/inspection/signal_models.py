"""The models whose signal is asked for, each with the tokens that it is looked at with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hessblocks.blocks import PRESETS, BlockConfig, Dense, preset
from hessblocks.errors import ArgumentError, unknown_name

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from hessblocks.inspection.samples import Sample
    from hessblocks.inspection.subject import Subject

PREFIX = "preset:"
PLAIN = "-plain"
"""Ends the name of a preset whose shaped attention is replaced by plain softmax attention."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """One model to look at."""

    name: str
    """In tables and figures."""
    source: str
    """As the user gave it."""
    subject: Subject
    """The model."""
    batch: Mapping[str, Int[Tensor, "sequences tokens"]]
    """Tokens and labels, each (sequences, tokens)."""


def plain_names() -> list[str]:
    """The presets with shaped attention, each with `-plain` at its end."""
    return [name + PLAIN for name in PRESETS if preset(name).attention.shaping is not None]


def block(name: str, **sizes: Any) -> BlockConfig:
    """The block of a preset, or of a preset with plain softmax attention (`skipless-plain`).

    Args:
        name: of a preset, perhaps with `-plain`: A in the place of αI + βA − γC, and queries drawn
            like the keys, since zero queries are the start of shaped attention.
        **sizes: fields of `BlockConfig`.

    Raises:
        ArgumentError: an unknown name, or sizes that do not fit.
    """
    known = [*PRESETS, *plain_names()]
    if name not in known:
        raise unknown_name("MODEL", name, known)
    found = preset(name if name in PRESETS else name.removesuffix(PLAIN), **sizes)
    if name in PRESETS:
        return found
    return found.replace(attention=found.attention.replace(shaping=None, query=Dense()))


def sources(models: Sequence[str], presets: str) -> list[str]:
    """What the user named, as an argument or in `--presets`, each once.

    Raises:
        ArgumentError: nothing, something twice, or an unknown preset.
    """
    named = [PREFIX + name.strip() for name in presets.split(",") if name.strip()]
    found = [*models, *named]
    if not found:
        raise ArgumentError(
            "MODEL: expected a folder or preset:NAME, or names with commas in --presets, got none."
        )
    twice = [source for source, count in Counter(found).items() if count > 1]
    if twice:
        raise ArgumentError(f"MODEL: {twice[0]} was given twice; give each model once.")
    for source in found:
        if source.startswith(PREFIX):
            block(source.removeprefix(PREFIX))
    return found


def looked_at(source: str, sample: Sample, sizes: Mapping[str, Any], seed: int) -> Looked:
    """The model, and tokens that it knows.

    Args:
        source: `preset:NAME`, a folder, or a name in the local Hugging Face cache.
        sample: where tokens come from and how many.
        sizes: depth, vocab_size, width, heads, mlp_width of presets.
        seed: of a preset's weights.

    Raises:
        ArgumentError: sizes that do not fit, a context shorter than the sample, too little text.
        RunError: damaged files.
    """
    if source.startswith(PREFIX):
        subject, batch = _fresh(source.removeprefix(PREFIX), sample, sizes, seed)
    else:
        subject, batch = _saved(source, sample)
    labelled = {**batch, "labels": batch["input_ids"]}
    return Looked(name=subject.name, source=source, subject=subject, batch=labelled)


def distinct(models: Sequence[Looked]) -> list[Looked]:
    """The same, named by their sources where short names would be equal."""
    count = Counter(model.name for model in models)
    return [
        replace(model, name=model.source) if count[model.name] > 1 else model for model in models
    ]


def _fresh(
    name: str, sample: Sample, sizes: Mapping[str, Any], seed: int
) -> tuple[Subject, dict[str, Tensor]]:
    import torch

    from hessblocks.inspection.samples import corpus_batch, random_batch
    from hessblocks.inspection.subject import Subject
    from hessblocks.models import build

    fields = dict(sizes)
    depth, vocabulary = fields.pop("depth"), fields.pop("vocab_size")
    made = block(name, **fields)
    corpus = None if sample.random else sample.corpus(vocabulary)
    torch.manual_seed(seed)
    model = build(
        made,
        depth=depth,
        vocab_size=corpus.vocab_size if corpus else vocabulary,
        context=sample.tokens,
    )
    subject = Subject(name=name, model=model.eval(), encode=None)
    return subject, corpus_batch(corpus, sample) if corpus else random_batch(subject, sample)


def _saved(source: str, sample: Sample) -> tuple[Subject, dict[str, Tensor]]:
    from hessblocks.inspection.samples import encoded_batch, random_batch
    from hessblocks.inspection.subject import saved_model

    subject = saved_model(source)
    if subject.context is not None and sample.tokens > subject.context:
        raise ArgumentError(
            f"--tokens: {sample.tokens} are longer than the context of {subject.context} of "
            f"{subject.name}; ask for fewer."
        )
    draw = random_batch if sample.random else encoded_batch
    return subject, draw(subject, sample)
