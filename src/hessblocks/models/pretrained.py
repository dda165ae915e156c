"""What all models made of blocks share: initial values, and loading that says what went wrong."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hessblocks.blocks import Resettable
from hessblocks.models.configuration import HessblocksConfig
from hessblocks.models.loading import check_complete, clear_errors

KEPT = "_keeps_its_values"
"""Marks modules of the user's own parts: their initial values are those that `build` gave them."""


def keep_values(part: nn.Module) -> None:
    """Keep the plain torch modules inside, which only the user's own parts have, as they were built."""
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and not hasattr(module, "_part"):
            setattr(module, KEPT, True)


class HessblocksPreTrainedModel(PreTrainedModel):
    """Base of the models; see `HessblocksModel` for the trunk."""

    config_class = HessblocksConfig
    config: HessblocksConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _no_split_modules = ["Layer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        """Load a model, as `transformers.PreTrainedModel.from_pretrained` does.

        Weights of another block or size are refused instead of being drawn anew. Only a head may be
        new, as when a classifier is made from a language model.

        Args:
            pretrained_model_name_or_path: folder or name on the Hugging Face hub.
            *arguments: as in transformers.
            **keywords: as in transformers.

        Raises:
            RunError: damaged weights, or weights that are not those of the configured model.
        """
        path = pretrained_model_name_or_path
        report = keywords.pop("output_loading_info", False)
        resize = keywords.pop("ignore_mismatched_sizes", False)
        load: Any = super().from_pretrained
        with clear_errors(path):
            model, found = load(
                path,
                *arguments,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **keywords,
            )
        check_complete(path, found | {"mismatched_keys": ()} if resize else found)
        return (model, found) if report else model

    def _init_weights(self, module: nn.Module) -> None:
        if getattr(module, KEPT, False):
            return
        if isinstance(module, nn.Embedding) or (
            isinstance(module, nn.Linear) and not hasattr(module, "_part")
        ):
            nn.init.normal_(module.weight, std=self.config.embedding_std)
        elif isinstance(module, Resettable):
            module.reset_parameters()
