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
from hessblocks.models.modeling import HessblocksModel, HessblocksPreTrainedModel

IGNORED = -100
"""Label of a token that the loss leaves out."""


class HessblocksForCausalLM(HessblocksPreTrainedModel, GenerationMixin):
    """A language model that predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True

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
        **loss_arguments: Any,
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
            **loss_arguments: passed to the loss (`num_items_in_batch` from the Trainer).
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
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **loss_arguments
            )
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values
        )


class HessblocksForMaskedLM(HessblocksPreTrainedModel):
    """A bidirectional model that restores masked tokens."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}  # noqa: RUF012

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
        **_: Any,
    ) -> MaskedLMOutput:
        """Logits (sequences, tokens, vocabulary) and, with labels, the mean loss in nats per masked token.

        Args:
            input_ids: (sequences, tokens), some of them the mask token.
            attention_mask: (sequences, tokens), 0 marks padding.
            position_ids: (sequences, tokens); by default counted over the unpadded tokens.
            inputs_embeds: vectors in the place of `input_ids`.
            labels: (sequences, tokens), the original token where one was masked, −100 elsewhere.
            **_: arguments of other models, ignored.
        """
        hidden = self.model(
            input_ids, attention_mask, position_ids, None, inputs_embeds
        ).last_hidden_state
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED
            )
        return MaskedLMOutput(loss=loss, logits=logits)


class HessblocksForSequenceClassification(HessblocksPreTrainedModel):
    """A model that gives each sequence a class, from the mean of its unpadded tokens."""

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
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Logits (sequences, classes) and, with labels, the mean loss in nats per sequence.

        Args:
            input_ids: (sequences, tokens).
            attention_mask: (sequences, tokens), 0 marks padding.
            position_ids: (sequences, tokens); by default counted over the unpadded tokens.
            inputs_embeds: vectors in the place of `input_ids`.
            labels: (sequences,), the classes.
            **_: arguments of other models, ignored.
        """
        hidden = self.model(
            input_ids, attention_mask, position_ids, None, inputs_embeds
        ).last_hidden_state
        weights = (
            hidden.new_ones(hidden.shape[:2])
            if attention_mask is None
            else attention_mask.to(hidden.dtype)
        )
        pooled = (weights[..., None] * hidden).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(
            min=1
        )
        logits = self.score(pooled)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
