"""Write a model card: a README.md with the model's architecture, training and loading code."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Environment, StrictUndefined, Template
from transformers import PreTrainedModel

from hessblocks._version import __version__
from hessblocks.blocks import BlockPart
from hessblocks.escape import printable
from hessblocks.models.gguf import stored_words
from hessblocks.storage import CARD, write_text

HEADS = {
    "ForCausalLM": ("causal language model", "text-generation"),
    "ForMaskedLM": ("masked language model", "fill-mask"),
    "ForSequenceClassification": ("classifier of sequences", "text-classification"),
    "Model": ("trunk without a head", "feature-extraction"),
}
"""For each suffix of a class name (the Auto class has it too): kind of model, and Hub task."""
TEMPLATE = Path(__file__).with_name("card.md")
"""Path of the card's jinja template."""
SHORTEST = 16
"""For a context of at least this many tokens, the card shows how to generate text."""


def write_card(
    folder: Path,
    model: PreTrainedModel,
    training: Mapping[str, Any],
    **about: Any,
) -> None:
    """Write the card of a saved model; keep a README.md that is not ours or was edited.

    Args:
        folder: folder with the saved model, and its tokeniser if there is one.
        model: the saved model.
        training: description of the training, by topic; empty if unknown.
        **about: the Hub's metadata, such as `base_model` and `license`; None if unknown.

    Raises:
        RunError: the file cannot be written.
    """
    place = folder / CARD
    if not place.exists() or _ours(place):
        text = _card(folder, model, training, about)
        write_text(place, text + _mark(text))


def write_family_card(folder: Path, kind: str, facts: Mapping[str, Any], **about: Any) -> None:
    """Write the card of a model of transformers that was made from another.

    Args:
        folder: folder with the saved model.
        kind: its `model_type`.
        facts: what is known of it, by topic.
        **about: the Hub's metadata, as in `write_card`.

    Raises:
        RunError: the file cannot be written.
    """
    tags: dict[str, Any] = {"pipeline_tag": "text-generation", "tags": [kind, "hessblocks"]}
    data = ModelCardData(**tags, **about)
    rows = "\n".join(f"| {_shown(name)} | {_shown(value)} |" for name, value in facts.items())
    text = f"---\n{data.to_yaml().strip()}\n---\n\n# A {kind} with fewer parameters\n\n"
    text += f"It opens in transformers as any {kind}.\n\n| | |\n| --- | --- |\n{rows}\n"
    write_text(folder / CARD, text + _mark(text))


def _mark(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return (
        f"<!-- written by hessblocks, {digest}; once this card is edited, "
        "hessblocks leaves it alone -->\n"
    )


def _ours(place: Path) -> bool:
    """Tell whether a card is unchanged since `write_card`."""
    try:
        text, begin, end = place.read_text(encoding="utf-8").rpartition("<!--")
    except (OSError, UnicodeDecodeError):
        return False
    return begin + end == _mark(text)


def _card(
    folder: Path,
    model: PreTrainedModel,
    training: Mapping[str, Any],
    about: Mapping[str, Any],
) -> str:
    config: Any = model.config
    names = [base.__name__.removeprefix("Hessblocks") for base in type(model).__mro__]
    ending = next((name for name in names if name in HEADS), "Model")
    kind, task = HEADS[ending]
    several = len(config.pattern) > 1
    preset = config.preset or ("blocks of its own, in turn" if several else "a block of its own")
    data = ModelCardData(
        library_name="hessblocks",
        pipeline_tag=task,
        tags=["hessblocks", *filter(None, [config.preset])],
        **about,
    )
    sizes = {(b.heads, b.resolved_key_value_heads, b.resolved_mlp_width) for b in config.blocks}
    return _template().render(
        data=data.to_yaml().strip(),
        preset=preset,
        kind=kind,
        version=__version__,
        config=config,
        where="" if len(sizes) == 1 else ", first layer",
        parameters=f"{model.num_parameters():,}",
        licence=about.get("license"),
        training=training,
        stored=stored_words(config),
        auto=f"AutoModel{ending.removeprefix('Model')}",
        parts=_own_parts(config.block),
        tokenizer=(folder / "tokenizer.json").is_file(),
        generates=ending == "ForCausalLM" and config.context >= SHORTEST,
    )


def _template() -> Template:
    around = Environment(  # Markdown: `shown` escapes
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    around.filters["shown"] = _shown
    return around.from_string(TEMPLATE.read_text(encoding="utf-8"))


def _own_parts(block: Any) -> list[str]:
    """List the import statements of modules that define users' parts."""
    if isinstance(block, list):
        return list(dict.fromkeys(line for one in block for line in _own_parts(one)))
    if not isinstance(block, dict):
        return []
    kinds = BlockPart.kinds(BlockPart)
    module = kinds[block["kind"]].__module__ if block.get("kind") in kinds else "hessblocks"
    own = [] if module.split(".")[0] == "hessblocks" else [f"import {module}  # parts of the block"]
    if module == "__main__":
        own = [f"# first define the part {block['kind']!r}, as the script did that made this model"]
    for value in block.values():
        own += [line for line in _own_parts(value) if line not in own]
    return own


def _shown(value: Any) -> str:
    """Format a value for Markdown, on one line, with all markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~!&$@:])", r"\\\1", printable(str(value)))
