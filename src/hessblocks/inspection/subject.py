"""A causal language model with what is needed to feed it, and how a saved one is loaded."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import find_adapter_config_file

from hessblocks.errors import ArgumentError, HessblocksError, RunError
from hessblocks.inspection.computation import bytes_of, digest_of
from hessblocks.quiet import quiet
from hessblocks.shown import printable
from hessblocks.storage import SEAL_FILE, DamageWarning, identity_in, refuse_links, sealed_folder

Encode = Callable[[str], list[int]]
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""No network, and no code that a folder brings along."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with what is needed to feed it."""

    name: str
    """Short name, for tables and titles."""
    model: nn.Module
    """A causal language model in evaluation mode and float32."""
    encode: Encode | None = None
    """From a document to its token ids; None without a tokeniser."""

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        size: int = self.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        return size

    @property
    def context(self) -> int | None:
        """Longest sequence, where the model has one."""
        config = getattr(self.model, "config", None)
        for name in ("context", "max_position_embeddings", "n_positions"):
            if isinstance(found := getattr(config, name, None), int):
                return found
        return None

    def configuration(self) -> str:
        """SHA-256 of what the weights do not show: heads, positions, activations, temperature, hooks."""
        return digest_of(self.model)

    def said(self) -> dict[str, str]:
        """Both digests, as a config.json has them."""
        return {"fingerprint": self.fingerprint(), "configuration": self.configuration()}

    def fingerprint(self) -> str:
        """SHA-256 of all weights: with equal configurations, equal fingerprints mean equal curvature."""
        digest = hashlib.sha256()
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(bytes_of(value))
        return digest.hexdigest()


def saved_model(source: str) -> Subject:
    """A causal language model as `save_pretrained` wrote it, or of the local Hugging Face cache.

    Weights are read from safetensors alone, and nothing that the folder brings along is executed.

    Args:
        source: a folder, a run folder of `hessblocks train`, or a hub name.

    Returns:
        The model in evaluation mode and float32, with the tokeniser beside it.

    Raises:
        ArgumentError: no such folder, or a model that gives no logits of the next token.
        RunError: a hub name that is not in the local cache, damaged files, or weights that are not finite.
    """
    place = _place(source)
    _warn_of_other_weights(source, Path(place))
    with quiet():
        _check_kind(source, place)
        try:
            load: Any = AutoModelForCausalLM.from_pretrained
            model, found = load(
                place,
                **_LOCAL,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
        except (HessblocksError, MemoryError):
            raise
        except SafetensorError as error:
            raise RunError(
                f"{source}: the weights are damaged or cut off ({error}); copy or save the model again"
            ) from error
        except Exception as error:  # of any kind: the files are somebody else's
            raise RunError(f"MODEL: {source} cannot be loaded ({_first_line(error)}).") from error
    if found["missing_keys"]:
        names = ", ".join(sorted(found["missing_keys"])[:3])
        raise ArgumentError(
            f"MODEL: {source} has no weights for {names}; expected a causal language model with its head."
        )
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise RunError(
                f"MODEL: {source} holds weights that are not finite ({name}); nothing can be measured."
            )
    return Subject(name=_short_name(source), model=model.eval(), encode=_encoder(place))


def _warn_of_other_weights(source: str, place: Path) -> None:
    """Say that a model that hessblocks trained has other files than it was saved with, or is of another run."""
    if not (place / SEAL_FILE).is_file():
        return
    inside = place.name == "model" and (place.parent / "config.json").is_file()
    found = sealed_folder(place, identity_in(place.parent) if inside else None)
    if not found.usable:
        warnings.warn(
            f"MODEL: {source} {found.words}; it is measured as it is now",
            DamageWarning,
            stacklevel=4,
        )


def _place(source: str) -> str:
    """What transformers is to load: the folder itself, the model inside a run folder, or the hub name."""
    folder = Path(source)
    if folder.is_dir():
        if (folder / "model" / "config.json").is_file():
            refuse_links(folder)
            return str(folder / "model")
        return str(folder)
    if folder.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1:
        raise ArgumentError(f"MODEL: {source} is no folder; give one that save_pretrained wrote.")
    return source


def _check_kind(source: str, place: str) -> None:
    """Refuse what is not a causal language model.

    Raises:
        ArgumentError: another kind of model, which has no logits of the next token, or one that needs code
            or weights from elsewhere.
        RunError: neither a folder with a model nor in the local cache.
    """
    try:
        config = AutoConfig.from_pretrained(place, **_LOCAL)
    except Exception as error:
        if Path(place).is_dir():
            raise ArgumentError(
                f"MODEL: {source} holds no model that transformers knows ({_first_line(error)})."
            ) from error
        raise RunError(
            f"MODEL: {source!r} is no folder, and no model of that name is in the local Hugging Face "
            f"cache; run `hf download {source}` where there is a network, or give a folder."
        ) from error
    _check_alone(source, place, config)
    known: Any = AutoModelForCausalLM._model_mapping
    names = getattr(config, "architectures", None) or []
    fitting = known[type(config)].__name__ if type(config) in known else None
    if fitting is None or (names and fitting not in names):
        kind = names[0] if names else type(config).__name__
        raise ArgumentError(
            f"MODEL: {source} is a {kind}, which gives no logits of the next token; expected a causal "
            "language model."
        )


def _check_alone(source: str, place: str, config: Any) -> None:
    """Refuse a model of which a part lies elsewhere: compiled code of the hub, or the model of an adapter."""
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for part, kind in itertools.product(parts, ("attn_implementation", "experts_implementation")):
        if "/" in (found := str(getattr(part, f"_{kind}", None))):
            raise ArgumentError(
                f"MODEL: {source} asks for code from elsewhere ({kind} {found}), which is never executed; "
                "take that line out of its config.json."
            )
    if find_adapter_config_file(place, local_files_only=True):
        raise ArgumentError(
            f"MODEL: {source} holds an adapter of another model; merge both and give the merged model."
        )


def _encoder(place: str) -> Encode | None:
    """The tokeniser beside the model, each document ended by its end-of-text token."""
    folder = Path(place)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZERS):
        return None
    with quiet():
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(place, **_LOCAL)
        except Exception:  # of any kind: the files are somebody else's
            return None
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def encode(text: str) -> list[int]:
        with quiet():
            return [*tokenizer(text, add_special_tokens=False)["input_ids"], *end]

    return encode


def _short_name(source: str) -> str:
    return printable(Path(source).resolve().name if Path(source).is_dir() else source)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")[:200]
