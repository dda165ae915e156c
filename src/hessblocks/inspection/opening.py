"""Open a preset, a saved folder, a cached hub model or a model object, and draw its tokens."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from hessblocks import data
from hessblocks.blocks import PRESETS, BlockConfig, Dense, pattern_names, preset
from hessblocks.conventions import IGNORED
from hessblocks.errors import ArgumentError, check_name
from hessblocks.inspection.subject import Subject, saved_model
from hessblocks.models import build, read_blocks
from hessblocks.settings import InspectionSettings, check_place
from hessblocks.storage import parse_json

RANDOM = "random"
PYTHON_CODE = "python-code"
PREFIX = "preset:"
MASKED = 0.15
"""Share of the tokens that a masked language model predicts."""
OF_PRESETS = ("depth", "width", "heads", "mlp_width", "position", "slots", "start", "vocab_size")
"""Settings that a model which is given or saved has no use for."""
PLAIN = "-plain"
"""Ends the name of a preset whose shaped attention is replaced by plain softmax attention."""
Source = str | Path | nn.Module
Batch = Mapping[str, Shaped[Tensor, "sequences ..."]]
Tokens = dict[str, Shaped[Tensor, "sequences ..."]]
"""Such as {"input_ids": (sequences, tokens)}."""


def _check_sizes_are_used(sources: Sequence[Source], settings: InspectionSettings) -> None:
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
    source: Source,
    settings: InspectionSettings,
    batch: Batch | None = None,
    task: str = "causal-lm",
    beside: Sequence[Source] = (),
) -> tuple[Subject, Tokens]:
    """Open a model, and draw tokens that it knows.

    Args:
        source: `preset:NAME`, a folder, a name in the local Hugging Face cache, or a model.
        settings: which tokens, the sizes of presets, and the seed.
        batch: the tokens, where they are given instead.
        task: task of a saved model, as `hb.load` takes it.
        beside: models that have the same settings; sizes may be meant for a preset among them.

    Returns:
        The model, and its batch, each entry (sequences, tokens).

    Raises:
        ArgumentError: an unknown preset, sizes that do not fit or that no preset uses, a context
            shorter than the sample, or too little text.
        RunError: damaged files.
    """
    if isinstance(source, str) and source.startswith(PREFIX):
        return _fresh(source.removeprefix(PREFIX), settings, batch)
    if isinstance(source, nn.Module):  # text cannot become its tokens
        subject = Subject(name=type(source).__name__, model=source)
    else:
        if batch is None:
            check_place(settings.data)  # before the weights are read
        subject = saved_model(str(source), task)
    _check_sizes_are_used([source, *beside], settings)  # before its text is read, which takes long
    if subject.context is not None and settings.tokens > subject.context:
        raise ArgumentError(
            f"--tokens: {settings.tokens} are longer than the context of {subject.context} of "
            f"{subject.name}; ask for fewer."
        )
    return subject, dict(batch) if batch else encoded_batch(subject, settings)


def _fresh(name: str, settings: InspectionSettings, batch: Batch | None) -> tuple[Subject, Tokens]:
    """Make a preset at initialisation, with the vocabulary of its text."""
    sizes = {key: getattr(settings, key) for key in ("width", "heads", "mlp_width")}
    (name,), own = _read([name])
    made = [block(one, own, **sizes) for one in pattern_names(name)]
    corpus = None
    if not batch and settings.data != RANDOM:
        corpus = _corpus(settings, settings.vocab_size)
    torch.manual_seed(settings.seed)
    model = build(
        made,
        depth=settings.depth,
        vocab_size=corpus.vocab_size if corpus else settings.vocab_size,
        context=settings.tokens,
        position=settings.position,
        slots=settings.slots,
        start=settings.start,
        name=name,
    )
    subject = Subject(name=name, model=model.eval())
    if corpus:
        text = f"the held-out text of {corpus.name}"
        return subject, _drawn(corpus.splits["validation"], text, settings)
    return subject, dict(batch) if batch else _random_batch(subject, settings)


def _corpus(settings: InspectionSettings, vocabulary: int) -> data.Corpus:
    """Load the text that is asked for, with an encoding of its own."""
    return data.load_corpus(None if settings.data == PYTHON_CODE else settings.data, vocabulary)


def _random_batch(subject: Subject, settings: InspectionSettings) -> Tokens:
    """Draw tokens uniformly from the model's vocabulary."""
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.sequences, settings.tokens)
    return {"input_ids": torch.randint(subject.vocabulary, shape, generator=generator)}


def encoded_batch(subject: Subject, settings: InspectionSettings) -> Tokens:
    """Draw windows of text in the model's own encoding, or random tokens.

    Of a model that hessblocks trained the windows are held-out ones, of others of the whole text.

    Returns:
        {"input_ids": (sequences, tokens)}.

    Raises:
        ArgumentError: the model has no tokeniser, its vocabulary is too small for the tokeniser, or
            there are fewer windows than asked for.
    """
    if settings.data == RANDOM:
        return _random_batch(subject, settings)
    if subject.tokenizer is None:
        raise ArgumentError(
            f"MODEL: {subject.name} has no tokenizer beside it, so that text cannot become its "
            "tokens; save the tokenizer into the same folder, or ask for random tokens with --data "
            "random."
        )
    name, documents = _documents(subject, settings)
    ids = data.encoded(subject.tokenizer, documents)
    if ids.size and ids.max() >= subject.vocabulary:
        raise ArgumentError(
            f"MODEL: the tokenizer of {subject.name} gives token ids up to {ids.max()}, the model "
            f"knows those below {subject.vocabulary}; give the tokenizer that it was trained with, "
            "or ask for random tokens with --data random."
        )
    return _drawn(ids, name, settings)


def _documents(subject: Subject, settings: InspectionSettings) -> tuple[str, list[Any]]:
    """Read a name and the documents of a text: all, or what was held out from a model of ours."""
    if subject.ours:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "--vocab-size", data.CorpusWarning)
            corpus = _corpus(settings, data.DEFAULT_VOCABULARY)
        return f"the held-out text of {corpus.name}", list(_held_out(corpus))
    if settings.data == PYTHON_CODE:
        source = data.standard_library()
        return source.name, [text for _, text in source.read("validation")]
    return settings.data, data.documents_of(Path(settings.data))


def _held_out(corpus: data.Corpus) -> Iterator[str]:
    """Decode the held-out documents to text again."""
    ids = np.asarray(corpus.splits["validation"])
    ends = np.flatnonzero(ids == corpus.tokenizer.token_to_id(data.END_OF_TEXT))
    for piece in np.split(ids, ends + 1):
        if text := corpus.tokenizer.decode(piece.tolist()):
            yield text


def masked(batch: Batch, subject: Subject, seed: int) -> Tokens:
    """Mask 15 % of the tokens, and label these alone.

    Returns:
        `input_ids` and `labels`, each (sequences, tokens).

    Raises:
        ArgumentError: the model has no tokeniser with a mask token.
    """
    mask = getattr(subject.tokenizer, "mask_token_id", None)
    if mask is None:
        raise ArgumentError(
            f"--loss: masked-lm needs a tokenizer with a mask token beside {subject.name}; save it "
            "into the same folder, or choose another loss."
        )
    ids = batch["input_ids"]
    order = torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(seed))
    hidden = (order < max(1, round(MASKED * ids.numel()))).view(ids.shape)
    return {"input_ids": ids.masked_fill(hidden, mask), "labels": ids.masked_fill(~hidden, IGNORED)}


def _drawn(ids: np.ndarray[Any, Any], name: str, settings: InspectionSettings) -> Tokens:
    """Draw windows without replacement, the same for the same seed.

    Args:
        ids: tokens.
        name: name of the text, for the error.
        settings: how many windows of how many tokens, and the seed.

    Returns:
        {"input_ids": (sequences, tokens)}.

    Raises:
        ArgumentError: fewer windows than asked for.
    """
    windows = data.Windows(ids, settings.tokens)
    return {"input_ids": windows.drawn(settings.sequences, settings.seed, "--sequences", name)}


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
    fresh = [one.removeprefix(PREFIX) for one in named if one.startswith(PREFIX)]
    if fresh:
        _read(fresh)


def _read(words: Sequence[str]) -> tuple[Sequence[str], dict[str, BlockConfig]]:
    """Read names of blocks, and the blocks of those that are files."""
    names, blocks = read_blocks(words, "MODEL", [*PRESETS, *plain_names()])
    return names, {name: BlockConfig.from_dict(parse_json(text)) for name, text in blocks}


def plain_names() -> list[str]:
    """List the presets with shaped attention, each with `-plain` at its end."""
    return [name + PLAIN for name in PRESETS if preset(name).attention.shaping is not None]


def block(name: str, given: Mapping[str, BlockConfig] | None = None, **sizes: Any) -> BlockConfig:
    """Make the block of a preset, or the same with plain softmax attention (`skipless-plain`).

    Args:
        name: name of a preset, perhaps with `-plain`: A in the place of αI + βA − γC, and queries
            drawn like the keys, since zero queries are the start of shaped attention.
        given: blocks that a name may mean too.
        **sizes: fields of `BlockConfig`.

    Returns:
        The block's configuration.

    Raises:
        ArgumentError: an unknown name, or sizes that do not fit.
    """
    base, bracket, slots = name.partition("[")
    check_name("MODEL", base, [*PRESETS, *plain_names(), *(given or {})])
    found = preset(base.removesuffix(PLAIN) + bracket + slots, given=given, **sizes)
    if base not in plain_names():
        return found
    return found.replace(attention=found.attention.replace(shaping=None, query=Dense()))
