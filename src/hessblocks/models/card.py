"""Write a model card: a README.md that says what a model was made from."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from hessblocks.escape import printable
from hessblocks.storage import CARD, write_text


def write_card(folder: Path, kind: str, facts: Mapping[str, Any], **about: Any) -> None:
    """Write the card of a model that was made from another.

    Args:
        folder: folder of the saved model.
        kind: transformers' name of its architecture, such as `llama`.
        facts: rows of the table.
        **about: the Hub's metadata, such as `base_model` and `license`; None if unknown.

    Raises:
        RunError: the file cannot be written.
    """
    about |= {"pipeline_tag": "text-generation", "tags": [kind, "hessblocks"]}
    rows = "\n".join(f"| {_shown(name)} | {_shown(value)} |" for name, value in facts.items())
    data = ModelCardData(**about).to_yaml().strip()
    text = f"---\n{data}\n---\n\n# A {kind} with fewer parameters\n\n"
    write_text(folder / CARD, f"{text}| | |\n| --- | --- |\n{rows}\n")


def _shown(value: Any) -> str:
    """Format a value for Markdown, on one line, with all markup escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~!&$@:])", r"\\\1", printable(str(value)))
