"""Open a preset, saved folder, cached hub model or model object, and draw a batch of tokens."""

import warnings
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
from hessblocks.errors import ArgumentError, RunError, check_name
from hessblocks.inspection.subject import Subject, saved_model
from hessblocks.models import build, read_blocks, stored_words
from hessblocks.settings import InspectionSettings
from hessblocks.storage import parse_json

RANDOM = "random"
PYTHON_CODE = "python-code"
PREFIX = "preset:"
MASKED = 0.15
"""Share of the tokens that a masked language model predicts."""
OF_PRESETS = ("depth", "width", "heads", "mlp_width", "position", "slots", "start", "vocab_size")
"""Settings that apply only to presets."""
PLAIN = "-plain"
"""Suffix of a preset's name: its shaped attention is replaced by plain softmax attention."""
ModelSource = str | Path | nn.Module
TokenBatch = Mapping[str, Shaped[Tensor, "sequences ..."]]
Tokens = dict[str, Shaped[Tensor, "sequences ..."]]
"""Batch of tokens, such as {"input_ids": (sequences, tokens)}."""


def _check_sizes_are_used(sources: Sequence[ModelSource], settings: InspectionSettings) -> None:
    """Refuse sizes of presets if all models have their own sizes."""
    if any(isinstance(source, str) and source.startswith(PREFIX) for source in sources):
        return
    for name in OF_PRESETS:
        if getattr(settings, name) != getattr(type(settings)(), name):
            noun = "blocks" if name in ("position", "slots") else "sizes"
            flag = {"slots": "set"}.get(name, name.replace("_", "-"))
            raise ArgumentError(
                f"--{flag}: a saved model has {noun} of its own; leave the option out, or give "
                f"{PREFIX}NAME."
            )


def opened(
    source: ModelSource,
    settings: InspectionSettings,
    batch: TokenBatch | None = None,
    task: str = "causal-lm",
    beside: Sequence[ModelSource] = (),
) -> tuple[Subject, Tokens]:
    """Open a model, and draw a batch of tokens from its vocabulary.

    Args:
        source: `preset:NAME`, a folder, a name in the local Hugging Face cache, or a model.
        settings: settings of the tokens, sizes of presets, and seed.
        batch: tokens to use instead of drawn ones.
        task: task of a saved model, as `hb.load` takes it.
        beside: other models with the same settings; the sizes may be for a preset among them.

    Returns:
        The model, and its batch with entries of shape (sequences, tokens).

    Raises:
        ArgumentError: a preset is unknown, sizes do not fit or no preset uses them, the context is
            shorter than the windows, or there is too little text.
        RunError: a file is damaged.
    """
    if isinstance(source, str) and source.startswith(PREFIX):
        return _fresh(source.removeprefix(PREFIX), settings, batch)
    if isinstance(source, nn.Module):  # has no tokeniser for text
        subject = Subject(name=type(source).__name__, model=source)
    else:
        subject = saved_model(str(source), task)
    _check_sizes_are_used([source, *beside], settings)  # before the slow reading of text
    subject.check_window(settings.tokens)
    return subject, dict(batch) if batch else encoded_batch(subject, settings)


def told(subject: Subject, settings: InspectionSettings, batch: TokenBatch | None) -> list[str]:
    """Say in how many bits a model was stored, and what its tokeniser puts before each window."""
    bare = settings.bare or batch is not None or settings.data == RANDOM
    config = getattr(subject.model, "config", None)
    return list(filter(None, (stored_words(config), data.start_words(subject.tokenizer, bare))))


def _fresh(
    name: str, settings: InspectionSettings, batch: TokenBatch | None
) -> tuple[Subject, Tokens]:
    """Build a preset at initialisation, with a vocabulary learnt from its text."""
    sizes = {key: getattr(settings, key) for key in ("width", "heads", "mlp_width")}
    (name,), texts = read_blocks([name], "MODEL", [*PRESETS, *plain_names()])
    blocks = {own: BlockConfig.from_dict(parse_json(text)) for own, text in texts}
    layers = [block(word, blocks, **sizes) for word in pattern_names(name)]
    drawn = batch or settings.data == RANDOM
    corpus = None if drawn else _corpus(settings, settings.vocab_size)
    torch.manual_seed(settings.seed)
    shape = {key: getattr(settings, key) for key in ("depth", "position", "slots", "start")}
    size = corpus.vocab_size if corpus else settings.vocab_size
    model = build(layers, vocab_size=size, context=settings.tokens, name=name, **shape)
    subject = Subject(name=name, model=model.eval())
    if corpus:
        text = f"the held-out text of {corpus.name}"
        return subject, _drawn(corpus.splits["validation"], text, settings)
    return subject, dict(batch) if batch else _random_batch(subject, settings)


def _corpus(settings: InspectionSettings, vocabulary: int) -> data.Corpus:
    """Load the text of the settings, with an encoding learnt from it."""
    return data.load_corpus(None if settings.data == PYTHON_CODE else settings.data, vocabulary)


def _random_batch(subject: Subject, settings: InspectionSettings) -> Tokens:
    """Draw tokens uniformly from the model's vocabulary."""
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (settings.sequences, settings.tokens)
    return {"input_ids": torch.randint(subject.vocabulary, shape, generator=generator)}


def encoded_batch(subject: Subject, settings: InspectionSettings) -> Tokens:
    """Draw windows of text in the model's own encoding, or random tokens.

    A model that hessblocks trained gets windows of held-out text, other models of the whole text.

    Returns:
        {"input_ids": (sequences, tokens)}.

    Raises:
        ArgumentError: the model has no tokeniser, its vocabulary is too small for the tokeniser, or
            the text has too few windows.
        RunError: the tokeniser cannot be read.
    """
    if settings.data == RANDOM:
        return _random_batch(subject, settings)
    if subject.lacks:
        raise RunError(subject.lacks)
    if subject.tokenizer is None:
        raise ArgumentError(
            f"MODEL: {subject.name} has no tokenizer beside it, so that text cannot become its "
            "tokens; save the tokenizer into the same folder, or ask for random tokens with --data "
            "random."
        )
    name, documents = _documents(subject, settings)
    otherwise = ", or ask for random tokens with --data random"
    ids = subject.encoded(documents, settings.tokens, otherwise)
    return _drawn(ids, name, settings, data.template_start(subject.tokenizer, settings.bare))


def _documents(subject: Subject, settings: InspectionSettings) -> tuple[str, list[Any]]:
    """Return name and documents of a text: all documents, or for our models the held-out ones."""
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
    """Decode the tokens of the held-out documents to text."""
    ids = np.asarray(corpus.splits["validation"])
    ends = np.flatnonzero(ids == corpus.tokenizer.token_to_id(data.END_OF_TEXT))
    for piece in np.split(ids, ends + 1):
        if text := corpus.tokenizer.decode(piece.tolist()):
            yield text


def masked(batch: TokenBatch, subject: Subject, seed: int) -> Tokens:
    """Mask 15 % of the tokens; only masked tokens have labels.

    Returns:
        `input_ids` and `labels`, each (sequences, tokens).

    Raises:
        ArgumentError: the model has no tokeniser with a mask token.
    """
    if (mask := getattr(subject.tokenizer, "mask_token_id", None)) is None:
        raise ArgumentError(
            f"--loss: masked-lm needs a tokenizer with a mask token beside {subject.name}; save it "
            "into the same folder, or choose another loss."
        )
    ids = batch["input_ids"]
    order = torch.randperm(ids.numel(), generator=torch.Generator().manual_seed(seed))
    hidden = (order < max(1, round(MASKED * ids.numel()))).view(ids.shape)
    return {"input_ids": ids.masked_fill(hidden, mask), "labels": ids.masked_fill(~hidden, IGNORED)}


def _drawn(
    ids: np.ndarray[Any, Any], name: str, settings: InspectionSettings, first: Sequence[int] = ()
) -> Tokens:
    """Draw windows, each with the tokens `first` at its start, the same for the same seed."""
    windows = data.Windows(ids, settings.tokens, first)
    return {"input_ids": windows.drawn(settings.sequences, settings.seed, "--sequences", name)}


def plain_names() -> list[str]:
    """List the presets with shaped attention, with the suffix `-plain`."""
    return [name + PLAIN for name in PRESETS if preset(name).attention.shaping is not None]


def block(
    name: str, own_blocks: Mapping[str, BlockConfig] | None = None, **sizes: Any
) -> BlockConfig:
    """Make the block of a preset, or its variant with plain softmax attention (`skipless-plain`).

    Args:
        name: name of a preset, or preset with `-plain`: attention is A instead of αI + βA − γC, and
            queries are initialised like keys, since only shaped attention needs zero queries.
        own_blocks: further blocks by name.
        **sizes: fields of `BlockConfig`.

    Returns:
        The block's configuration.

    Raises:
        ArgumentError: the name is unknown, or sizes do not fit.
    """
    base, bracket, slots = name.partition("[")
    check_name("MODEL", base, [*PRESETS, *plain_names(), *(own_blocks or {})])
    config = preset(base.removesuffix(PLAIN) + bracket + slots, given=own_blocks, **sizes)
    if base not in plain_names():
        return config
    return config.replace(attention=config.attention.replace(shaping=None, query=Dense()))
