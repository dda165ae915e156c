"""Models for a task: the trunk with a head and a loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

from hessblocks.errors import ArgumentError
from hessblocks.models.configuration import HessblocksConfig
from hessblocks.models.losses import cross_entropy, next_token_loss
from hessblocks.models.modeling import HessblocksModel
from hessblocks.models.pretrained import HessblocksPreTrainedModel


class HessblocksForCausalLM(HessblocksPreTrainedModel, GenerationMixin):
    """A language model that predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True
    """The Trainer passes `num_items_in_batch`, so that accumulated batches weigh by valid tokens."""

    def __init__(self, config: HessblocksConfig) -> None:
        """Build the model; weights are drawn from torch's global random state."""
        super().__init__(config)
        if not config.causal:
            raise ArgumentError("causal: a causal language model needs causal=True")
        self.model = HessblocksModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (sequences, tokens, vocabulary) and, with labels, the mean loss in nats per token.

        Args:
            input_ids: (sequences, tokens).
            attention_mask: (sequences, tokens), 0 marks padding.
            position_ids: (sequences, tokens); by default counted over the unpadded tokens.
            past_key_values: keys and values of earlier tokens.
            inputs_embeds: vectors in the place of `input_ids`.
            labels: (sequences, tokens), the same tokens as `input_ids` (shifted here), −100 ignored.
            use_cache: whether to return keys and values.
            logits_to_keep: only the logits of the last so many tokens; 0 keeps all.
            num_items_in_batch: valid labels of all batches that are accumulated; None means of this one.
            **_: arguments of other models, ignored.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
        )
        last = isinstance(logits_to_keep, int)
        kept = slice(-logits_to_keep if logits_to_keep else None, None) if last else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = next_token_loss(logits, labels, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values
        )


class HessblocksForMaskedLM(HessblocksPreTrainedModel):
    """A bidirectional model that restores masked tokens."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True

    def __init__(self, config: HessblocksConfig) -> None:
        """Build the model; weights are drawn from torch's global random state."""
        super().__init__(config)
        if config.causal:
            raise ArgumentError("causal: a masked language model needs causal=False")
        self.model = HessblocksModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> MaskedLMOutput:
        """Logits (sequences, tokens, vocabulary) and, with labels, the mean loss in nats per masked token.

        Args:
            input_ids: (sequences, tokens), some of them the mask token.
            attention_mask: (sequences, tokens), 0 marks padding.
            position_ids: (sequences, tokens); by default counted over the unpadded tokens.
            inputs_embeds: vectors in the place of `input_ids`.
            labels: (sequences, tokens), the original token where one was masked, −100 elsewhere.
            num_items_in_batch: valid labels of all batches that are accumulated; None means of this one.
            **_: arguments of other models, ignored.
        """
        hidden = self.model(
            input_ids, attention_mask, position_ids, None, inputs_embeds
        ).last_hidden_state
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss = cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits)


class HessblocksForSequenceClassification(HessblocksPreTrainedModel):
    """A model that gives each sequence a class, from the mean of its unpadded tokens."""

    accepts_loss_kwargs = True

    def __init__(self, config: HessblocksConfig) -> None:
        """Build the model; weights are drawn from torch's global random state."""
        super().__init__(config)
        self.model = HessblocksModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels or 2, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Logits (sequences, classes) and, with labels, the mean loss in nats per sequence.

        Args:
            input_ids: (sequences, tokens).
            attention_mask: (sequences, tokens), 0 marks padding.
            position_ids: (sequences, tokens); by default counted over the unpadded tokens.
            inputs_embeds: vectors in the place of `input_ids`.
            labels: (sequences,), the classes.
            num_items_in_batch: sequences of all batches that are accumulated; None means of this one.
            **_: arguments of other models, ignored.
        """
        hidden = self.model(
            input_ids, attention_mask, position_ids, None, inputs_embeds
        ).last_hidden_state
        logits = self.score(_mean_token(hidden, attention_mask))
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def _mean_token(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    if attention_mask is None:
        return hidden.mean(dim=1)
    weights = attention_mask.to(hidden.dtype)[..., None]
    return (weights * hidden).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
