"""Base class of all models made of blocks: initial values, loading, saving."""

import inspect
import warnings
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from hessblocks.errors import ArgumentError, RunError, unknown_name
from hessblocks.models.configuration import HessblocksConfig

HEADS = ("lm_head", "score")
"""Modules that may lack weights or have no use for them, such as a new classifier's head."""


def check_complete(path: Any, report: dict[str, Any]) -> None:
    """Check that loaded weights fit the model; warn if a head is new.

    Args:
        path: path or name of the weights.
        report: transformers' `output_loading_info`.

    Raises:
        RunError: weights do not fit; the message names the first ones.
    """
    for name, stored, expected in sorted(report["mismatched_keys"]):
        part = "vocabulary" if "token_embedding" in name else "sizes"
        raise RunError(
            f"{path}: the weights and the configuration differ in their {part}: {name} is "
            f"{tuple(stored)} in the file, {tuple(expected)} in the configuration; load with the "
            "configuration that was saved with the weights"
        )
    missing = sorted(report["missing_keys"])
    strange = [
        f"{kind} {name}"
        for kind, names in (("without", missing), ("with", sorted(report["unexpected_keys"])))
        for name in names
        if name.split(".")[0] not in HEADS
    ]
    if strange:
        shown = ", ".join(strange[:3]) + (f" and {len(strange) - 3} more" if strange[3:] else "")
        raise RunError(
            f"{path}: the weights are those of another block than the configuration's ({shown}); "
            "load with the configuration that was saved with the weights"
        )
    if missing:
        warnings.warn(f"{path}: {', '.join(missing)} is new and has to be trained", stacklevel=3)


KEPT = "_keeps_its_values"
"""Mark of modules in users' parts, whose initial values transformers must not change."""


def keep_values(part: nn.Module) -> None:
    """Mark plain torch modules, which occur only in users' parts, to keep their initial values."""
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and not hasattr(module, "_part"):
            setattr(module, KEPT, True)


class HessblocksPreTrainedModel(PreTrainedModel):
    """Base class of the models; see `HessblocksModel` for the trunk."""

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

        Weights of another block or size raise an error; they are not reinitialised. Only a head may
        be new, as when a classifier is made from a language model.

        Args:
            pretrained_model_name_or_path: folder or name on the Hugging Face hub.
            *arguments: as in transformers.
            **keywords: as in transformers; the default of `use_safetensors` is True, so that
                pickled weights are not opened.

        Returns:
            The model; with `output_loading_info`, a pair of model and loading information.

        Raises:
            RunError: damaged weights, or weights that are not those of the configured model.
        """
        path = pretrained_model_name_or_path
        report = keywords.pop("output_loading_info", False)
        resize = keywords.pop("ignore_mismatched_sizes", False)
        load: Any = super().from_pretrained
        keywords.setdefault("use_safetensors", True)
        keywords |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # `check_complete` reports missing and unexpected keys
        try:
            model, mismatches = load(path, *arguments, **keywords)
        except SafetensorError as error:
            raise RunError(
                f"{path}: the weights are damaged or cut off ({error}); copy or save the model "
                "again"
            ) from error
        finally:
            logging.set_verbosity(verbosity)
        check_complete(path, mismatches | {"mismatched_keys": ()} if resize else mismatches)
        return (model, mismatches) if report else model

    def _init_weights(self, module: nn.Module) -> None:
        if getattr(module, KEPT, False):
            return
        if isinstance(module, nn.Embedding) or (
            isinstance(module, nn.Linear) and not hasattr(module, "_part")
        ):
            nn.init.normal_(module.weight, std=self.config.embedding_std)
        elif reset := getattr(module, "reset_parameters", None):
            reset()


HARMLESS = ("cache_position", "use_cache")
"""Arguments that callers pass to all Hugging Face models, without effect on our models' output."""


def check_keywords(keywords: dict[str, Any], model: type[nn.Module]) -> None:
    """Refuse keywords that would be ignored, unless their value is None.

    Args:
        keywords: by name.
        model: class of the called model; the error names its arguments.

    Raises:
        ArgumentError: an unknown keyword, segments, or attention matrices, which the models do not
            return.
    """
    for name, value in keywords.items():
        if value is None or name in HARMLESS:
            continue
        if name == "token_type_ids":
            raise ArgumentError(
                "token_type_ids: the models have no segment embeddings; leave them out, in a "
                "tokenizer by return_token_type_ids=False"
            )
        if name != "output_attentions":
            taken = inspect.signature(model.forward).parameters
            names = sorted({*taken, "output_hidden_states"} - {"self", "others"})
            raise unknown_name("argument of the model", name, names)
        if value:
            raise ArgumentError(
                "output_attentions: the models never hold attention matrices; "
                "layer.attention.matrix or hessblocks.signal give them for one batch"
            )
