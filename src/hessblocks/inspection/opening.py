"""The one opener: a preset, a saved folder, a name in the local hub cache or a model, and its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from hessblocks.blocks import PRESETS, BlockConfig, Dense, pattern_names, preset
from hessblocks.errors import ArgumentError, check_name
from hessblocks.inspection.samples import RANDOM, corpus_of, drawn, encoded_batch, random_batch
from hessblocks.inspection.subject import Subject, saved_model
from hessblocks.models import build
from hessblocks.settings import InspectionSettings

PREFIX = "preset:"
OF_PRESETS = ("depth", "width", "heads", "mlp_width", "position", "slots", "vocab_size")
"""Settings that a model which is given or saved has no use for."""
PLAIN = "-plain"
"""Ends the name of a preset whose shaped attention is replaced by plain softmax attention."""
Source = str | Path | nn.Module
Batch = Mapping[str, Shaped[Tensor, "sequences ..."]]


def check_sizes_are_used(sources: Sequence[Source], settings: InspectionSettings) -> None:
    """Refuse sizes of presets where there is no preset.

    Raises:
        ArgumentError: a size other than the default, and only models that have their own.
    """
    if any(isinstance(source, str) and source.startswith(PREFIX) for source in sources):
        return
    for name in OF_PRESETS:
        if getattr(settings, name) != getattr(type(settings)(), name):
            own = "blocks" if name in ("position", "slots") else "sizes"
            said = {"slots": "set"}.get(name, name.replace("_", "-"))
            raise ArgumentError(
                f"--{said}: a saved model has {own} of its own; leave the option out, or give "
                f"{PREFIX}NAME."
            )


def opened(
    source: Source, settings: InspectionSettings, batch: Batch | None = None
) -> tuple[Subject, dict[str, Shaped[Tensor, "sequences ..."]]]:
    """A model, and tokens that it knows.

    Args:
        source: `preset:NAME`, a folder, a name in the local Hugging Face cache, or a model.
        settings: which tokens, the sizes of presets, and the seed.
        batch: the tokens, where they are given instead.

    Returns:
        The model, and its batch, each entry (sequences, tokens).

    Raises:
        ArgumentError: an unknown preset, sizes that do not fit, a context shorter than the sample, or
            too little text.
        RunError: damaged files.
    """
    if isinstance(source, str) and source.startswith(PREFIX):
        return _fresh(source.removeprefix(PREFIX), settings, batch)
    if isinstance(source, nn.Module):  # text cannot become its tokens
        subject = Subject(name=type(source).__name__, model=source)
    else:
        subject = saved_model(str(source))
    if subject.context is not None and settings.tokens > subject.context:
        raise ArgumentError(
            f"--tokens: {settings.tokens} are longer than the context of {subject.context} of "
            f"{subject.name}; ask for fewer."
        )
    return subject, dict(batch) if batch else encoded_batch(subject, settings)


def _fresh(
    name: str, settings: InspectionSettings, batch: Batch | None
) -> tuple[Subject, dict[str, Shaped[Tensor, "sequences ..."]]]:
    """A preset at initialisation, with the vocabulary of its text."""
    sizes = {key: getattr(settings, key) for key in ("width", "heads", "mlp_width")}
    made = [block(one, **sizes) for one in pattern_names(name)]
    corpus = None
    if not batch and settings.data != RANDOM:
        corpus = corpus_of(settings, settings.vocab_size)
    torch.manual_seed(settings.seed)
    model = build(
        made,
        depth=settings.depth,
        vocab_size=corpus.vocab_size if corpus else settings.vocab_size,
        context=settings.tokens,
        position=settings.position,
        slots=settings.slots,
    )
    subject = Subject(name=name, model=model.eval())
    if corpus:
        return subject, drawn(corpus.splits["validation"], corpus.name, settings)
    return subject, dict(batch) if batch else random_batch(subject, settings)


def check_sources(sources: Sequence[Source]) -> None:
    """Refuse nothing, something twice, or an unknown preset, before anything is loaded.

    Raises:
        ArgumentError: says which.
    """
    if not sources:
        raise ArgumentError(
            "MODEL: expected a folder or preset:NAME, or names with commas in --presets, got none."
        )
    named = [str(source) for source in sources if not isinstance(source, nn.Module)]
    for source, count in Counter(named).items():
        if count > 1:
            raise ArgumentError(f"MODEL: {source} was given twice; give each model once.")
        if source.startswith(PREFIX):
            for one in pattern_names(source.removeprefix(PREFIX)):
                block(one)


def plain_names() -> list[str]:
    """The presets with shaped attention, each with `-plain` at its end."""
    return [name + PLAIN for name in PRESETS if preset(name).attention.shaping is not None]


def block(name: str, **sizes: Any) -> BlockConfig:
    """The block of a preset, or of a preset with plain softmax attention (`skipless-plain`).

    Args:
        name: of a preset, perhaps with `-plain`: A in the place of αI + βA − γC, and queries drawn
            like the keys, since zero queries are the start of shaped attention.
        **sizes: fields of `BlockConfig`.

    Returns:
        The block's configuration.

    Raises:
        ArgumentError: an unknown name, or sizes that do not fit.
    """
    known = [*PRESETS, *plain_names()]
    check_name("MODEL", name, known)
    found = preset(name.removesuffix(PLAIN), **sizes)
    if name in PRESETS:
        return found
    return found.replace(attention=found.attention.replace(shaping=None, query=Dense()))
