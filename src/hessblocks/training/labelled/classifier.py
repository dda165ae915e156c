"""A classifier made of a saved model, and texts as it reads them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from hessblocks.data import SEPARATOR, Row
from hessblocks.errors import ArgumentError, RunError
from hessblocks.models import Saved, context_of
from hessblocks.quiet import quiet

Encoded = dict[str, Any]
ENDLESS = 10**9
"""What transformers calls the longest text of a tokeniser that knows none is larger."""


class NewHeadWarning(UserWarning):
    """A classifier was given labels of other names, so that its head begins anew."""


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A text classifier, with what feeds it."""

    name: str
    """Of the saved model."""
    model: PreTrainedModel
    """A classifier in float32."""
    tokenizer: Any
    """With a token for padding."""
    classes: tuple[str, ...]
    """Names of its outputs, in order."""
    new: tuple[str, ...]
    """Weights that the saved model has not, drawn anew."""

    def limit(self, wanted: int | None) -> int | None:
        """The longest text in tokens.

        Args:
            wanted: by the user; None for what model and tokeniser take.

        Returns:
            Tokens; None where nothing bounds them.

        Raises:
            ArgumentError: more than the model takes.
        """
        own = (context_of(self.model), self.tokenizer.model_max_length)
        known = min((one for one in own if one is not None and one < ENDLESS), default=None)
        if wanted is not None and known is not None and wanted > known:
            raise ArgumentError(
                f"--tokens: {wanted} are longer than the {known} that {self.name} takes; ask for fewer."
            )
        return wanted or known

    def encode(self, rows: Sequence[Row], limit: int | None) -> tuple[list[Encoded], int]:
        """Rows as the model takes them.

        Args:
            rows: labelled with names of the classes.
            limit: tokens after which a text is cut.

        Returns:
            An entry a row, and how many were cut.

        Raises:
            ArgumentError: a text of no tokens, tokens that the model does not know, or a limit that leaves no room.
        """
        texts: list[tuple[str, ...]] = [row.texts for row in rows]
        count = self.tokenizer.num_special_tokens_to_add
        if len(texts[0]) == 2 and count(pair=True) == count(pair=False):  # nothing would part them
            texts = [(SEPARATOR.join(both),) for both in texts]
        added = count(pair=len(texts[0]) == 2)
        if limit is not None and limit < added + len(texts[0]):
            raise ArgumentError(
                f"--tokens: {limit} leave no room for a text beside the {added} special tokens of {self.name}; expected "
                f"{added + len(texts[0])} or more."
            )
        columns = [list(column) for column in zip(*texts, strict=True)]
        with quiet():
            whole = self.tokenizer(*columns)["input_ids"]
            found = self.tokenizer(*columns, truncation=limit is not None, max_length=limit)
        if min(map(len, found["input_ids"])) == 0:
            empty = rows[[len(ids) for ids in found["input_ids"]].index(0)].texts
            raise ArgumentError(f"--data: {empty!r} has no token of {self.name}; remove that row.")
        self._check_vocabulary(max(map(max, found["input_ids"])))
        taken = inspect.signature(type(self.model).forward).parameters
        names = [name for name in found if name in taken]
        examples = [
            {
                **{name: found[name][place] for name in names},
                "labels": self.classes.index(row.label),
            }
            for place, row in enumerate(rows)
        ]
        return examples, sum(limit is not None and len(ids) > limit for ids in whole)

    def _check_vocabulary(self, largest: int) -> None:
        """Refuse a tokeniser that is not the model's."""
        largest = max(largest, self.tokenizer.pad_token_id)
        embeddings: Any = self.model.get_input_embeddings()
        size = embeddings.num_embeddings
        if largest >= size:
            raise ArgumentError(
                f"MODEL: the tokenizer of {self.name} gives token ids up to {largest}, the model knows those below "
                f"{size}; give the tokenizer that it was trained with."
            )


def classifier_of(saved: Saved, classes: tuple[str, ...], seed: int) -> Classifier:
    """Put a head for these classes onto a saved model, or keep the one that it has.

    Args:
        saved: a classifier, or any model on which transformers puts the head of one.
        classes: names of the labels. A classifier with the same names keeps its own order.
        seed: of a new head.

    Returns:
        The classifier.

    Raises:
        ArgumentError: no such head, or no tokeniser that can pad.
        RunError: damaged files, or weights that are missing besides a head.

    Warns:
        NewHeadWarning: a classifier of labels with other names.
    """
    kind = saved.class_of(AutoModelForSequenceClassification)
    if kind is None:
        raise ArgumentError(
            f"MODEL: {saved.source} is a {type(saved.config).__name__.removesuffix('Config')}, on which transformers "
            "puts no classification head; give another model."
        )
    tokenizer = saved.tokenizer()
    if tokenizer is None:
        raise ArgumentError(
            f"MODEL: {saved.source} has no tokenizer beside it, so that text cannot become its tokens; save the "
            "tokenizer into the same folder."
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ArgumentError(
                f"MODEL: the tokenizer of {saved.source} has no token for padding and none for the end of a text; "
                "name one in its tokenizer_config.json."
            )
        tokenizer.pad_token = tokenizer.eos_token  # it is masked
    own = tuple(saved.config.id2label[key] for key in sorted(saved.config.id2label))
    kept = kind in saved.kinds and set(own) == set(classes)
    if kept:
        classes = own
    elif kind in saved.kinds:
        warnings.warn(
            f"MODEL: {saved.source} is a classifier of {', '.join(map(str, own))}, the data has the labels "
            f"{', '.join(classes)}: its head is drawn anew; where they mean the same, name them alike",
            NewHeadWarning,
            stacklevel=3,
        )
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is new and has to be trained")
        model, found = saved.load(
            AutoModelForSequenceClassification,
            id2label=dict(enumerate(classes)),
            label2id={name: label for label, name in enumerate(classes)},
            problem_type="single_label_classification",
            ignore_mismatched_sizes=True,
        )
    new = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    trunk = [name for name in sorted(new) if _of_trunk(name, model.base_model_prefix)]
    if trunk:
        raise RunError(
            f"MODEL: {saved.source} has no weights for {', '.join(trunk[:3])}, or of another size; save it again."
        )
    if not kept:
        new |= _drawn_outputs(model, len(classes))
    model.config.pad_token_id = tokenizer.pad_token_id
    return Classifier(
        name=saved.name, model=model, tokenizer=tokenizer, classes=classes, new=tuple(sorted(new))
    )


def _drawn_outputs(model: PreTrainedModel, classes: int) -> set[str]:
    """Draw the layer of the logits anew, which is loaded where it has as many labels, though others; its weights' names."""
    names = {
        name
        for name, weight in model.named_parameters()
        if not name.startswith(f"{model.base_model_prefix}.") and classes in weight.shape
    }
    for layer in sorted({name.rpartition(".")[0] for name in names}):
        for weight in model.get_submodule(layer).parameters():
            weight._is_hf_initialized = False  # type: ignore[attr-defined]
        model._init_weights(model.get_submodule(layer))
    return names


def _of_trunk(name: str, prefix: str) -> bool:
    """Whether a weight is one that no head brings along; that of a pooler is (BERT's comes with its head)."""
    return name.startswith(f"{prefix}.") and "pooler" not in name.split(".")
