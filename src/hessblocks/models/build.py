"""Build a model from sizes and a block or a preset's name; read blocks from arguments and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hessblocks import blocks
from hessblocks.errors import ArgumentError, RunError, check_name
from hessblocks.models.configuration import HessblocksConfig, check_pattern, described
from hessblocks.models.heads import TASKS
from hessblocks.storage import canonical, read_object, stays_inside


def build(
    block: str | blocks.BlockConfig | Sequence[str | blocks.BlockConfig],
    *,
    depth: int = 4,
    vocab_size: int = 4096,
    context: int = 128,
    task: str = "causal-lm",
    classes: int = 2,
    tie_word_embeddings: bool = True,
    start: str = "scaled",
    embedding_std: float | str | None = None,
    position: blocks.Position | str | None = None,
    slots: blocks.Slots = (),
    name: str | None = None,
    **block_fields: Any,
) -> PreTrainedModel:
    """Build a Hugging Face model made of `depth` blocks.

    Args:
        block: name of a preset (`hessblocks.PRESETS`) or a `BlockConfig`. Several blocks, such as
            ["pre-ln", "sas-p"] or "pre-ln+sas-p", alternate over the layers; then only the first
            block's field for the first layer (`first_norm`) has an effect.
        depth: number of layers, a multiple of the number of blocks.
        vocab_size: entries of the vocabulary.
        context: longest sequence, in tokens.
        task: causal-lm, masked-lm or classification; the last two attend in both directions.
        classes: number of classes where `task` is classification; 1 makes it a regression.
        tie_word_embeddings: whether the language-model head is the transposed token embedding.
        start: initialisation of matrices and embeddings: `scaled`, from each block's fields, or
            `fixed`, a standard deviation of 0.02; see `blocks.with_start`.
        embedding_std: standard deviation of the specs of token and position embeddings at
            initialisation; None: `embedding_std` of the first block.
        position: positional encoding, as a part or its kind (`"rotary"`); None: the field of each
            block.
        slots: fields to change in every block, by path: `{"attention.query.init": "zeros"}`; see
            `hessblocks.blocks.with_slots`.
        name: name of the block in tables; by default the preset's name.
        **block_fields: fields of `BlockConfig` to change in every block (`width=256, heads=4`).

    Returns:
        A model with weights drawn from torch's global random state; call `torch.manual_seed`
        before. Build it under `torch.device("meta")` to count parameters without memory.

    Raises:
        ArgumentError: a block that is neither a preset's name nor a `BlockConfig`, an unknown task
            or field, a size below 1, incompatible parts, a depth that is no multiple of the number
            of blocks, or blocks that differ in a field that all layers share, such as the width.

    Examples:
        >>> import hessblocks as hb
        >>> sizes = {"width": 16, "heads": 2, "vocab_size": 10, "context": 8}
        >>> hb.build("pre-ln", depth=2, **sizes).num_parameters()
        6384
        >>> mixed = hb.build(["pre-ln", "sas-p"], depth=4, **sizes)
        >>> [block.layout for block in mixed.config.blocks]
        ['sequential', 'parallel', 'sequential', 'parallel']
    """
    sizes = {"depth": depth, "vocab_size": vocab_size, "context": context, "classes": classes}
    for argument, size in sizes.items():
        blocks.check_positive(argument, size)
    check_name("task", task, TASKS)
    chosen = {}
    if position is not None:
        chosen = {"position": blocks.part_of(position, blocks.Position, "position")}
        block_fields |= chosen
    if embedding_std is not None:
        block_fields["embedding_std"] = embedding_std
    specs = [block] if isinstance(block, str | blocks.BlockConfig) else block
    if not (isinstance(specs, Sequence) and specs) or isinstance(specs, bytes):
        raise ArgumentError(f"block: expected a preset's name or a BlockConfig, got {block!r}")
    several = [blocks.pattern_names(spec) if isinstance(spec, str) else [spec] for spec in specs]
    specs = [part for parts in several for part in parts]
    changes = [*chosen.items(), *blocks.slot_pairs(slots)]
    layers = [_block(spec, start, changes, block_fields) for spec in specs]
    check_pattern(layers, depth)
    named = [spec for spec in specs if isinstance(spec, str)]
    config = HessblocksConfig(
        vocab_size=vocab_size,
        depth=depth,
        context=context,
        causal=task == "causal-lm",
        preset=name or (blocks.JOIN.join(named) if len(named) == len(layers) else None),
        block=described(layers),
        tie_word_embeddings=tie_word_embeddings,
        embedding_std=layers[0].resolved_embedding_std,
    )
    config.num_labels = classes
    return TASKS[task][0](config)


def _block(
    block: object, start: str, slots: blocks.Slots, fields: dict[str, Any]
) -> blocks.BlockConfig:
    if isinstance(block, str):
        return blocks.preset(block, start=start, slots=slots, **fields)
    if isinstance(block, blocks.BlockConfig):
        fields = blocks.placed(block, slots, fields)
        return blocks.with_slots(blocks.with_start(block.replace(**fields), start), slots)
    raise ArgumentError(f"block: expected a preset's name or a BlockConfig, got {block!r}")


ENDING = ".json"
"""Suffix of a file with a block."""


def read_blocks(
    words: Sequence[str], option: str = "--presets", presets: Sequence[str] = blocks.PRESETS
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Read names of blocks; a file's block is named like the file, without the suffix.

    Args:
        words: presets, variants in brackets, files, or several of these joined by +.
        option: name of the argument, for errors.
        presets: allowed names besides files.

    Returns:
        The names; and for each file, name and block as JSON.

    Raises:
        ArgumentError: no words, an unknown name, invalid brackets, a file that is missing or has no
            block of this version, or two blocks with the same name.
    """
    files: dict[str, Path] = {}
    names = []
    for word in words:
        parts = [_named(part, files, option) for part in blocks.pattern_names(word)]
        for part in parts:
            check_name(option, blocks.parted(part)[0], [*presets, *files])
        names.append(blocks.JOIN.join(parts))
    if not names:
        raise ArgumentError(f"{option}: expected names with commas; known: {', '.join(presets)}.")
    texts = {name: canonical(_read(path, option).to_dict()) for name, path in files.items()}
    return tuple(names), tuple(texts.items())


def _named(word: str, files: dict[str, Path], option: str) -> str:
    """Return the name of the block in `word`; add a file to `files`."""
    if ENDING not in word:
        return word
    file, ending, brackets = word.rpartition(ENDING)
    path, name = Path(file + ending), Path(file).name
    if name in blocks.PRESETS or files.setdefault(name, path) != path:
        raise ArgumentError(f"{option}: there are two blocks called {name!r}; rename {path}.")
    if not stays_inside(name) or not name or set(name) & set("+,[]"):
        raise ArgumentError(f"{option}: {path} is not a usable name of a block; rename it.")
    return name + brackets


def _read(path: Path, option: str) -> blocks.BlockConfig:
    """Read a block from a file in the format of `BlockConfig.to_dict`."""
    if not path.is_file():
        raise ArgumentError(f"{option}: {path} is not a file; give one that exists.")
    try:
        return blocks.BlockConfig.from_dict(read_object(path))
    except (ArgumentError, RunError) as error:
        raise ArgumentError(
            f"{option}: {path} is not a block that this version reads ({error}); write it with "
            "BlockConfig.to_dict."
        ) from error
