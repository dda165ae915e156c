"""The card of a model's folder: a README.md that says what the model is and how it is loaded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from transformers import PreTrainedModel

from hessblocks._version import __version__
from hessblocks.blocks import BlockPart
from hessblocks.shown import printable
from hessblocks.storage import CARD, write_text

HEADS = {
    "ForCausalLM": ("causal language model", "text-generation"),
    "ForMaskedLM": ("masked language model", "fill-mask"),
    "ForSequenceClassification": ("classifier of sequences", "text-classification"),
    "ForTokenClassification": ("classifier of tokens", "token-classification"),
    "ForQuestionAnswering": ("model that finds answers in texts", "question-answering"),
    "Model": ("trunk without a head", "feature-extraction"),
}
"""Of a class, the end of its name: the Auto class of the same end loads it; kind and task of the Hub."""
PUBLISH = """\
`hf upload NAME .` sends this folder to the Hugging Face hub as it is, this card included; name a licence first, since
none is stated here. Afterwards `model.push_to_hub("NAME")` sends new weights and keeps the card that is there. Into a
repository without a card it would put an empty one of transformers' own.
"""
UNKNOWN = "What it was trained on is not known to hessblocks: write it down here.\n"
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
    return f"<!-- written by hessblocks, {digest}; once this card is edited, hessblocks leaves it alone -->\n"


def _ours(place: Path) -> bool:
    """Whether a card is as `write_card` left it."""
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
    sizes = {
        "block": preset,
        "layers": config.depth,
        "width": config.hidden_size,
        "attention heads": config.num_attention_heads,
        "heads of keys and values": config.num_key_value_heads,
        "width of the MLP": config.intermediate_size,
        "positions": config.blocks[0].position.kind,
        "vocabulary": config.vocab_size,
        "context, in tokens": config.context,
        "parameters": f"{model.num_parameters():,}",
    }
    return f"""\
---
{data.to_yaml().strip()}
---

# {_shown(preset)}, {config.depth} layers of width {config.hidden_size}

A {kind} made of transformer blocks by hessblocks {__version__}.

{_table(sizes)}
## Training

{_table(training) if training else UNKNOWN}
## Loading

hessblocks has to be installed; its import tells transformers of this model, so that no remote code is trusted.

```python
{_loading(folder, config, ending)}
```

## Publishing

{PUBLISH}
"""


def _loading(folder: Path, config: Any, ending: str) -> str:
    """Lines of Python that load and use the model, begun in its folder."""
    tokenizer = (folder / "tokenizer.json").is_file()
    auto = f"AutoModel{ending.removeprefix('Model')}"
    lines = [
        "import hessblocks  # before the model is loaded",
        *_own_parts(config.block),
        *([] if tokenizer else ["import torch"]),
        f"from transformers import {auto}{', AutoTokenizer' if tokenizer else ''}",
        "",
        'folder = "."  # this folder, or NAME of a repository on the Hugging Face hub',
        f"model = {auto}.from_pretrained(folder)",
    ]
    if not tokenizer:
        return "\n".join(
            [*lines, "output = model(input_ids=torch.tensor([[0]]))", "print(output[0].shape)"]
        )
    lines.append("tokenizer = AutoTokenizer.from_pretrained(folder)")
    lines.append('text = tokenizer("def", return_tensors="pt")')
    if ending == "ForCausalLM" and config.context >= SHORTEST:
        lines.append("tokens = model.generate(**text, max_new_tokens=8)")
        return "\n".join([*lines, "print(tokenizer.decode(tokens[0]))"])
    return "\n".join([*lines, "print(model(**text)[0].shape)"])


def _own_parts(block: Any) -> list[str]:
    """Imports of the modules that define parts of the user's own."""
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


def _table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {_shown(name)} | {_shown(value)} |\n" for name, value in rows.items()]
    return f"| | |\n| --- | --- |\n{''.join(lines)}"


def _shown(value: Any) -> str:
    """A value as Markdown shows it: on one line, with nothing in it that acts."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~!&$@:])", r"\\\1", printable(str(value)))
