"""What a model may be asked for besides its own arguments."""

from __future__ import annotations

from typing import Any

from hessblocks.errors import ArgumentError, unknown_name

HARMLESS = ("cache_position", "use_cache")
"""Arguments that callers of Hugging Face models pass everywhere and that change no output here."""

KNOWN = ("attention_mask", "inputs_embeds", "labels", "output_hidden_states", "position_ids")


def check_keywords(given: dict[str, Any]) -> None:
    """Refuse what would be ignored; an argument of None is none.

    Raises:
        ArgumentError: an unknown keyword, or attention matrices, which the models do not return.
    """
    for name, value in given.items():
        if value is None or name in HARMLESS:
            continue
        if name != "output_attentions":
            raise unknown_name("argument of the model", name, KNOWN)
        if value:
            raise ArgumentError(
                "output_attentions: the models never hold attention matrices; "
                "layer.attention.matrix or hessblocks.signal give them for one batch"
            )
