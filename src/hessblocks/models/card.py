"""Write a model card: a README.md that says what the model is and how it is loaded."""

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
from hessblocks.storage import CARD, write_text

HEADS = {
    "ForCausalLM": ("causal language model", "text-generation"),
    "ForMaskedLM": ("masked language model", "fill-mask"),
    "ForSequenceClassification": ("classifier of sequences", "text-classification"),
    "Model": ("trunk without a head", "feature-extraction"),
}
"""End of a class's name (that of the Auto class that loads it) → kind of model, task of the Hub."""
TEMPLATE = Path(__file__).with_name("card.md")
"""The card, for jinja."""
SHORTEST = 16
"""Tokens of context from which on the card shows how text is generated."""


def write_card(folder: Path, model: PreTrainedModel, training: Mapping[str, Any]) -> None:
    """Write the card of a saved model; a README.md that is not ours, or was edited, stays.

    Args:
        folder: with the saved model, and the tokeniser where there is one.
        model: that was saved.
        training: what it was trained on and how, in words; empty where that is not known.

    Raises:
        RunError: the file cannot be written.
    """
    place = folder / CARD
    if not place.exists() or _ours(place):
        text = _card(folder, model, training)
        write_text(place, text + _mark(text))


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


def _card(folder: Path, model: PreTrainedModel, training: Mapping[str, Any]) -> str:
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
        training=training,
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
    """List the imports of the modules that define the user's own parts."""
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
    """Format a value for Markdown: on one line, with nothing in it that acts."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~!&$@:])", r"\\\1", printable(str(value)))
