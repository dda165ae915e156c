"""Hugging Face models for tasks: trunk with a head, and a loss in nats.

Letters: B sequences, T tokens, V vocabulary.
"""

import abc
import inspect
from typing import Any, ClassVar, NoReturn

import torch
from jaxtyping import Float, Int, Num, Shaped
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from hessblocks.conventions import IGNORED
from hessblocks.errors import ArgumentError
from hessblocks.models.attention_functions import real_tokens
from hessblocks.models.configuration import HessblocksConfig
from hessblocks.models.modeling import HessblocksModel
from hessblocks.models.pretrained import HARMLESS, HessblocksPreTrainedModel, check_keywords

_TRUNK_ARGUMENTS = frozenset(inspect.signature(HessblocksModel.forward).parameters)


def _check_others(others: dict[str, Any], head: nn.Module) -> None:
    """Refuse keywords that neither the head nor the trunk accepts."""
    unknown = {name: value for name, value in others.items() if name not in _TRUNK_ARGUMENTS}
    check_keywords(unknown, type(head))


class _LanguageModel(HessblocksPreTrainedModel):
    """Trunk with a head over the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True
    """Makes the Trainer pass `num_items_in_batch`, for the mean over the tokens of accumulated
    batches."""
    _causal: ClassVar[bool]

    def __init__(self, config: HessblocksConfig) -> None:
        """Build the model; weights are drawn from torch's global random state."""
        super().__init__(config)
        if config.causal != self._causal:
            kind = "causal" if self._causal else "masked"
            raise ArgumentError(f"causal: a {kind} language model needs causal={self._causal}")
        self.model = HessblocksModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.softcap = config.blocks[0].logit_softcap
        self.post_init()

    def _capped_logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()


class HessblocksForCausalLM(_LanguageModel, GenerationMixin):
    """Causal language model, which predicts the next token."""

    _causal = True

    def init_continuous_batching(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse `generate_batch`, which calls this first.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            "generate_batch: continuous batching packs several requests into one row, and shaped "
            "attention would average over the keys of all; use generate with a padded batch"
        )

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Int[Tensor, "sequences tokens"] | None = None,
        attention_mask: Shaped[Tensor, "#sequences ..."] | None = None,
        position_ids: Int[Tensor, "#sequences tokens"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "sequences tokens width"] | None = None,
        labels: Int[Tensor, "sequences tokens"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Int[Tensor, " kept"] = 0,
        num_items_in_batch: Num[Tensor, ""] | int | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits (sequences, tokens, vocabulary) and the mean loss in nats per token.

        Args:
            input_ids: (sequences, tokens).
            attention_mask: (sequences, tokens), 0 marks padding.
            position_ids: (sequences, tokens); by default counted over the unpadded tokens.
            past_key_values: keys and values of earlier tokens.
            inputs_embeds: vectors instead of `input_ids`.
            labels: (sequences, tokens), the same tokens as `input_ids` (shifted here), −100
                ignored.
            use_cache: whether to return keys and values.
            logits_to_keep: compute logits of this many last tokens, 0 for all, or of these indices.
            num_items_in_batch: number of valid labels in all accumulated batches; None: in this
                batch.
            **others: `output_hidden_states` and `return_dict`, as in transformers.

        Returns:
            Logits, loss, keys and values, and, if wanted, hidden states.

        Raises:
            ArgumentError: an unknown argument, tokens outside the vocabulary, or too long a
                sequence.
        """
        _check_others(others, self)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **others,
        )
        last = isinstance(logits_to_keep, int)
        ends = slice(-logits_to_keep if logits_to_keep else None, None) if last else logits_to_keep
        logits = self._capped_logits(outputs.last_hidden_state[:, ends])
        loss = None if labels is None else next_token_loss(logits, labels, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )


class _WithoutCache(HessblocksPreTrainedModel):
    """Trunk with a head for whole sequences, without a key-value cache."""

    _result: ClassVar[type[ModelOutput]]

    def _loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        return cross_entropy(logits, labels, items)

    @abc.abstractmethod
    def _logits(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Compute logits from the trunk's final hidden states, (sequences, tokens, width)."""

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Int[Tensor, "sequences tokens"] | None = None,
        attention_mask: Shaped[Tensor, "#sequences ..."] | None = None,
        position_ids: Int[Tensor, "#sequences tokens"] | None = None,
        inputs_embeds: Float[Tensor, "sequences tokens width"] | None = None,
        labels: Num[Tensor, "sequences ..."] | None = None,
        num_items_in_batch: Num[Tensor, ""] | int | None = None,
        **others: Any,
    ) -> ModelOutput:
        """Compute logits and, with labels, the mean loss in nats per label that is not −100.

        Args:
            input_ids: (sequences, tokens), some of them the mask token in masked language models.
            attention_mask: (sequences, tokens), 0 marks padding.
            position_ids: (sequences, tokens); by default counted over the unpadded tokens.
            inputs_embeds: vectors instead of `input_ids`.
            labels: one for each row of the logits.
            num_items_in_batch: number of valid labels in all accumulated batches; None: in this
                batch.
            **others: `output_hidden_states` and `return_dict`, as in transformers.

        Returns:
            Logits, loss and hidden states. Logits are (sequences, tokens, vocabulary) of a masked
            language model, (sequences, classes) of a classifier.

        Raises:
            ArgumentError: as in `HessblocksForCausalLM`.
        """
        _check_others(others, self)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **{name: value for name, value in others.items() if name not in HARMLESS},
        )
        logits = self._logits(outputs.last_hidden_state, attention_mask)
        loss = None if labels is None else self._loss(logits, labels, num_items_in_batch)
        return self._result(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class HessblocksForMaskedLM(_WithoutCache, _LanguageModel):
    """Masked language model, which predicts masked tokens from both sides.

    `labels`, (sequences, tokens), are the original tokens where masked, −100 elsewhere.
    """

    _causal = False
    _result = MaskedLMOutput

    def _logits(self, hidden: Tensor, mask: Tensor | None) -> Float[Tensor, "B T V"]:
        return self._capped_logits(hidden)


class HessblocksForSequenceClassification(_WithoutCache):
    """Sequence classifier on the mean hidden state of a sequence's unpadded tokens.

    `labels`, (sequences,), are the classes. With `num_labels=1` they are numbers, and the loss is
    the mean squared error.
    """

    _result = SequenceClassifierOutput
    accepts_loss_kwargs = True

    def __init__(self, config: HessblocksConfig) -> None:
        """Build the model; weights are drawn from torch's global random state.

        Raises:
            ArgumentError: a `problem_type` other than one class or one number per sequence, or a
                softcap.
        """
        fitting = "regression" if config.num_labels == 1 else "single_label_classification"
        if config.problem_type not in (None, fitting):
            raise ArgumentError(
                f"problem_type: expected {fitting} with num_labels={config.num_labels}, got "
                f"{config.problem_type!r}"
            )
        if config.blocks[0].logit_softcap is not None:
            raise ArgumentError(
                "logit_softcap: it caps the logits of a vocabulary, which a classifier does not "
                "have; leave it out"
            )
        super().__init__(config)
        self.model = HessblocksModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels or 2, bias=False)
        self.post_init()

    def _loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        loss = squared_error if self.config.num_labels == 1 else cross_entropy
        return loss(logits, labels, items)

    def _logits(self, hidden: Tensor, mask: Tensor | None) -> Float[Tensor, "sequences classes"]:
        real = real_tokens(mask)
        if real is not None:
            weights = real.to(hidden.dtype)[..., None]
            mean = (weights * hidden).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        elif mask is None:
            mean = hidden.mean(dim=1)
        else:
            raise ArgumentError(
                "attention_mask: expected (sequences, tokens) to average over, got "
                f"{tuple(mask.shape)}"
            )
        logits: Tensor = self.score(mean)
        return logits


def cross_entropy(
    logits: Float[Tensor, "*batch classes"],
    labels: Int[Tensor, "*batch"],
    items: Num[Tensor, ""] | int | None = None,
) -> Float[Tensor, ""]:
    """Compute the mean cross-entropy over the labels that are not `IGNORED`, in nats.

    Args:
        logits: logits; half precision is cast to float32.
        labels: classes; `IGNORED` is left out.
        items: divisor of the sum for accumulated batches; None: the number of valid labels in this
            batch.

    Returns:
        The loss, a scalar with a graph.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = F.cross_entropy(
        wide.flatten(0, -2),
        labels.flatten().long(),
        ignore_index=IGNORED,
        reduction="mean" if items is None else "sum",
    )
    return loss if items is None else loss / items


def squared_error(
    predicted: Float[Tensor, "B 1"],
    labels: Num[Tensor, "B ..."],
    items: Num[Tensor, ""] | int | None = None,
) -> Float[Tensor, ""]:
    """Compute the mean squared difference between one number per sequence and its label.

    Args:
        predicted: predictions; half precision is cast to float32.
        labels: numbers, (B,) or (B, 1), in any unit; none is left out.
        items: divisor of the sum, see `cross_entropy`.

    Returns:
        The loss, a scalar with a graph, in the square of the labels' unit.
    """
    wide = predicted.to(torch.promote_types(predicted.dtype, torch.float32))
    total = F.mse_loss(wide, labels.to(wide.dtype).reshape(wide.shape), reduction="sum")
    return total / (len(labels) if items is None else items)


def next_token_loss(
    logits: Float[Tensor, "B T V"],
    tokens: Int[Tensor, "B T"],
    items: Num[Tensor, ""] | int | None = None,
) -> Float[Tensor, ""]:
    """Compute `cross_entropy` of the logits with the next tokens; the last logits are ignored."""
    following = F.pad(tokens[:, 1:], (0, 1), value=IGNORED)
    return cross_entropy(logits, following, items)


TASKS: dict[str, tuple[type[PreTrainedModel], Any, str]] = {
    "causal-lm": (HessblocksForCausalLM, AutoModelForCausalLM, "logits of the next token"),
    "masked-lm": (HessblocksForMaskedLM, AutoModelForMaskedLM, "logits of masked tokens"),
    "classification": (
        *(HessblocksForSequenceClassification, AutoModelForSequenceClassification),
        "logits of classes",
    ),
}
"""Task → our class, the Auto class of all models, and what models of other tasks do not give."""
