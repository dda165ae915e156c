"""Load a saved model with its tokeniser: a folder, a GGUF file, or a name in the local cache."""

from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, check_name
from hessblocks.models.saved import Saved

HEADS: dict[str, tuple[Any, str]] = {
    "causal-lm": (AutoModelForCausalLM, "gives no logits of the next token"),
    "masked-lm": (AutoModelForMaskedLM, "gives no logits of masked tokens"),
    "classification": (AutoModelForSequenceClassification, "gives no logits of classes"),
}
"""The class that makes the model of a task, and what one of another task lacks."""


def load(source: AnyPath, *, task: str = "causal-lm") -> tuple[PreTrainedModel, Any]:
    """Load a saved model and its tokeniser, without a network and without foreign code.

    Args:
        source: a folder that `save_pretrained` wrote, a run folder of `hessblocks train`, a GGUF
            file, or a name in the local Hugging Face cache.
        task: causal-lm, masked-lm or classification; the same word is the `loss` of `Problem`.

    Returns:
        The model in evaluation mode and float32, and its tokeniser; None where it has none.

    Raises:
        ArgumentError: nothing is there, or a model without the weights for the task.
        RunError: a name that is not in the local cache, damaged files, or weights that are not
            finite.

    Examples:
        >>> import tempfile, hessblocks as hb
        >>> model = hb.build("sas-p", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     loaded, tokenizer = hb.load(folder)
        >>> loaded.num_parameters() == model.num_parameters(), tokenizer
        (True, None)
    """
    check_name("task", task, HEADS)
    model, saved = load_saved(str(source), task)
    return model, saved.tokenizer()


def load_saved(source: str, task: str) -> tuple[PreTrainedModel, Saved]:
    """Load a model as `load` does, and say where it lies.

    Args:
        source: as `load` takes it.
        task: a name of `HEADS`.

    Returns:
        The model, and its files.

    Raises:
        ArgumentError: see `load`.
        RunError: see `load`.
    """
    auto, lacks = HEADS[task]
    saved = Saved.at(source)
    fitting = saved.class_of(auto)
    if fitting is None or (saved.kinds and fitting not in saved.kinds):
        kind = saved.kinds[0] if saved.kinds else type(saved.config).__name__
        other = next((one for one, (head, _) in HEADS.items() if saved.class_of(head) == kind), "")
        advice = f"; its task is {other}" if other else ""
        expected = {"causal-lm": "a causal language model"}.get(task, f"a model for {task}")
        raise ArgumentError(
            f"MODEL: {source} is a {kind}, which {lacks}; expected {expected}{advice}."
        )
    model, found = saved.load(auto)
    if found["missing_keys"]:
        names = ", ".join(sorted(found["missing_keys"])[:3])
        raise ArgumentError(
            f"MODEL: {source} has no weights for {names}; expected a model of {task} with its head."
        )
    return model.eval(), saved
