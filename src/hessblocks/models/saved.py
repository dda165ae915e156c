"""Open a saved model with its tokeniser, offline and without remote code."""

import copy
import hashlib
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import metadata_load, try_to_load_from_cache
from huggingface_hub.utils import HFValidationError, validate_repo_id
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
from transformers.utils import find_adapter_config_file

from hessblocks import storage
from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, HessblocksError, RunError, check_name
from hessblocks.escape import printable
from hessblocks.models.configuration import HessblocksConfig
from hessblocks.models.gguf import check_gguf, complete_config, is_gguf, reading, stored_types
from hessblocks.models.gguf_tokenizer import follow_file
from hessblocks.models.heads import TASKS
from hessblocks.models.packed_weights import MXFP4, mxfp4_types, with_floats
from hessblocks.models.pretrained import check_complete
from hessblocks.quiet import quiet, without_bars

_FROM_0 = (lambda value: 0 <= value < math.inf, "a number from 0 on")
_ABOVE = (lambda value: 0 < value < math.inf, "a number above 0")
_COUNT = (lambda value: isinstance(value, int) and value >= 1, "a whole number from 1 on")
VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("*_eps", "*_epsilon", "*_softcapping"), _FROM_0),
    **dict.fromkeys(("*rope_theta", "query_pre_attn_scalar"), _ABOVE),
    **dict.fromkeys(("sliding_window", "num_experts_per_tok", "n_head"), _COUNT),
    "*max_position_embeddings": (lambda value: value >= 1, _COUNT[1]),
    "output_hidden_states": (lambda value: isinstance(value, bool), "true or false"),
}
"""Pattern of a configuration's key → whether a value fits, and what is expected."""
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Options of transformers: no network, and no code from the folder."""
_NUMBER, _IN_LAYER = re.compile(r"\.\d+\."), re.compile(r"(\.\d+\.).*")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Saved model, in a folder or in the local cache, before its weights are read."""

    source: str
    """Name or path from the user."""
    location: str
    """Folder or hub name that transformers loads."""
    config: Any
    """Its configuration."""
    gguf: str | None = None
    """GGUF file in `location` with model and tokeniser; None for other formats."""
    reader: Any = None
    """Reader of the GGUF file."""

    @classmethod
    def at(cls, source: str) -> Self:
        """Read a model's configuration.

        Args:
            source: a folder, a run folder of `hessblocks train`, a GGUF file, or a hub name.

        Returns:
            The model, without weights.

        Raises:
            ArgumentError: no such folder, or a model that needs code or weights from elsewhere.
            RunError: a hub name that is not in the local cache, or a configuration that does not
                fit the weights.

        Warns:
            DamageWarning: files of a model trained by hessblocks have changed since it was saved.
        """
        if is_gguf(source):
            return cls._in_file(source, Path(source))
        location = _place(source)
        folder = Path(location)
        if (folder / storage.MANIFEST).is_file() and (fault := storage.check_in_place(folder)):
            words = f"MODEL: {source} {fault}; it is taken as it is now"
            warnings.warn(words, storage.DamageWarning, stacklevel=3)
        with quiet():
            return cls(source=source, location=location, config=_config(source, location))

    @classmethod
    def _in_file(cls, source: str, path: Path) -> Self:
        reader = check_gguf(path)
        folder = str(path.parent)
        with quiet(), reading(reader), _loading(source):
            config = AutoConfig.from_pretrained(folder, gguf_file=path.name, **_LOCAL)
        complete_config(path, reader, config)
        _check_values(source, config.to_dict())
        return cls(source=source, location=folder, config=config, gguf=path.name, reader=reader)

    @property
    def name(self) -> str:
        """Short name, for tables and titles; of `model` in a run folder, the run folder's."""
        path = Path(self.source)
        if not (self.gguf or path.is_dir()):
            return printable(self.source)
        path = path.absolute() if self.gguf else path.resolve()  # a cache links to other names
        head, *rest = (path.stem if self.gguf else path.name).split("-")
        if head == "model" and (path.parent / "environment.json").is_file():
            head = path.parent.name
        return printable("-".join([head, *rest]))

    @property
    def licence(self) -> str | None:
        """Licence by the GGUF file's header or the folder's card; None if neither names one."""
        try:
            if self.reader:
                return str(self.reader.fields["general.license"].contents())
            named = (metadata_load(_folder_of(self.location) / storage.CARD) or {})["license"]
            return named if isinstance(named, str) else None
        except Exception:  # a file from elsewhere may cause any kind of error
            return None

    @property
    def kinds(self) -> list[str]:
        """Names of the model's classes in its configuration; may be empty."""
        return list(getattr(self.config, "architectures", None) or [])

    def class_of(self, auto: Any) -> str | None:
        """Find the class that an Auto class selects for this model; None if there is none."""
        classes = auto._model_mapping
        return classes[type(self.config)].__name__ if type(self.config) in classes else None

    def load(self, auto: Any, **keywords: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Read the weights, only from safetensors or GGUF.

        Args:
            auto: Auto class of transformers that makes the model.
            **keywords: see `from_pretrained`.

        Returns:
            The model in float32, and transformers' information on missing and unexpected keys.

        Raises:
            HessblocksError: the weights do not fit the configuration.
            RunError: damaged files, or weights that are not finite.
        """
        keywords |= self._file
        types: dict[str, str] = {}
        if self.gguf:
            keywords["config"] = self.config  # reading it again would take seconds
        packed = getattr(self.config, "quantization_config", None)
        bars = without_bars() if self.gguf or packed else nullcontext()
        if isinstance(packed, dict) and packed.get("quant_method") == "mxfp4":
            # transformers then makes floats of it as it reads, on any device
            keywords["config"] = copy.deepcopy(self.config)
            keywords["config"].quantization_config["dequantize"] = True
            types = mxfp4_types(storage.tensor_types(_folder_of(self.location)))
        with quiet(), reading(self.reader), bars, _loading(self.source):
            if self.gguf:
                types = stored_types(Path(self.source), self.reader, self.config, auto)
            model, report = auto.from_pretrained(
                self.location,
                **_LOCAL,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # then the loading information names them
                **keywords,
            )
        check_complete(self.source, {**report, "missing_keys": (), "unexpected_keys": ()})
        if (quantizer := getattr(model, "hf_quantizer", None)) and not self.gguf:
            with _loading(self.source):
                types = with_floats(self.source, model, quantizer)
        for name, weight in model.named_parameters():
            if not weight.isfinite().all():
                raise RunError(
                    f"MODEL: {self.source} holds weights that are not finite ({name}); give "
                    "another copy."
                )
        if not self.gguf:
            unused = {*report["unexpected_keys"], *(f"{n}_{end}" for n in types for end in MXFP4)}
            _check_floats(self.source, self.location, model, unused)
        if quantizer:  # transformers would refuse to save it, although it is float32 by now
            quantizer.remove_quantization_config(model)
        model.config.return_dict = True
        if types and not self.gguf:
            shapes = {name: w.shape for name, w in model.named_parameters() if "bias" not in name}
            types = {n: types.get(n, "F32") for n, shape in shapes.items() if len(shape) > 1}
        if types:
            model.config.stored_types = types
        return model, report

    @property
    def _file(self) -> dict[str, str]:
        return {"gguf_file": self.gguf} if self.gguf else {}

    def tokenizer(self, *, needed: bool = False) -> Any:
        """Load the model's tokeniser.

        Args:
            needed: whether to refuse a model without one.

        Returns:
            The tokeniser; None if there is none, or with a warning if it cannot be read.

        Raises:
            ArgumentError: it is needed, and there is none.
            RunError: it is needed and cannot be read; the message has the reason.
        """
        folder = Path(self.location)
        available = any((folder / name).is_file() for name in _TOKENIZERS)
        if self.reader:
            available = "tokenizer.ggml.model" in self.reader.fields
        if folder.is_dir() and not available:
            if needed:
                raise ArgumentError(
                    f"MODEL: {self.name} has no tokenizer; save it into the folder."
                )
            return None
        with quiet(), reading(self.reader):
            try:
                tokenizer = AutoTokenizer.from_pretrained(self.location, **_LOCAL, **self._file)
                if self.reader:
                    follow_file(tokenizer, self.reader)
                inner: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
                if getattr(inner, "dropout", None):  # draws other tokens at each call, for training
                    inner.dropout = None
            except Exception as error:  # files from elsewhere may cause any kind of error
                reason = (
                    f"MODEL: the tokenizer of {self.source} cannot be read ({_first_line(error)})"
                )
                if needed:
                    raise RunError(f"{reason}; save it in transformers' format.") from error
            else:
                return tokenizer
        warnings.warn(reason, stacklevel=3)
        return None


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """Report an error of transformers, which any content of a file may cause, in a sentence."""
    try:
        yield
    except (HessblocksError, MemoryError):
        raise
    except SafetensorError as error:
        raise RunError(
            f"{source}: the weights are damaged or cut off ({error}); copy or save the model again"
        ) from error
    except Exception as error:
        raise RunError(f"MODEL: {source} cannot be loaded ({_first_line(error)}).") from error


def context_of(model: nn.Module) -> int | None:
    """Read a model's maximum sequence length; None if its configuration has none."""
    config = getattr(model, "config", None)
    for name in ("context", "max_position_embeddings", "n_positions"):
        if isinstance(length := getattr(config, name, None), int) and length > 0:  # XLNet's is -1
            return length - _places_of_padding(model, length)
    return None


def _places_of_padding(model: nn.Module, places: int) -> int:
    """Count unused entries of the position table: RoBERTa's first position is `padding_idx` + 1."""
    for name, module in model.named_modules():
        padding, table = getattr(module, "padding_idx", None), getattr(module, "weight", ())
        if "position" in name.rpartition(".")[2] and padding is not None and len(table) == places:
            return int(padding) + 1
    return 0


def fingerprint(model: nn.Module) -> str:
    """Hash all weights (SHA-256), in hexadecimal."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        entries = value.detach().cpu().contiguous().reshape(-1)
        digest.update(entries.view(torch.uint8).numpy())
    return digest.hexdigest()


def _place(source: str) -> str:
    """Find transformers' argument: the folder, the model in a run folder, or the hub name."""
    folder = Path(source)
    if source and os.path.isdir(source):  # of a name that is too long, Path.is_dir raises
        if (folder / "model" / "config.json").is_file():
            storage.refuse_links(folder)
            return str(folder / "model")
        return str(folder)
    try:
        validate_repo_id(source)
    except HFValidationError as error:
        shown = source or "an empty name"
        raise ArgumentError(
            f"MODEL: {shown} is not a folder; give one that save_pretrained wrote, or a GGUF file."
        ) from error
    return source


def _config(source: str, location: str) -> Any:
    storage.check_model_folder(_folder_of(location))
    try:
        config = AutoConfig.from_pretrained(location, **_LOCAL)
    except Exception as error:
        if Path(location).is_dir():
            raise ArgumentError(
                f"MODEL: {source} holds no model that transformers knows ({_first_line(error)})."
            ) from error
        raise RunError(
            f"MODEL: {source!r} is not a folder, and no model of that name is in the local Hugging "
            f"Face cache; run `hf download {source}` where there is a network, or give a folder."
        ) from error
    storage.check_own_code(f"MODEL: {source}", config)
    _check_values(source, config.to_dict())
    if getattr(config, "auto_map", None) and config.model_type != HessblocksConfig.model_type:
        warnings.warn(
            f"MODEL: {source} names code of its own (auto_map), which is not executed; the model "
            f"is transformers' {config.model_type}",
            stacklevel=5,
        )
    if find_adapter_config_file(location, local_files_only=True):
        raise ArgumentError(
            f"MODEL: {source} holds an adapter of another model; merge both and give the merged "
            "model."
        )
    return config


def _check_values(source: str, values: Mapping[str, Any]) -> None:
    """Refuse values of a configuration that no model has, such as a negative epsilon."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_values(source, value)
        for pattern, (fits, expected) in VALUES.items():
            known = value is not None and values.get(f"use_{key}") is not False
            named = known and fnmatchcase(str(key), pattern)
            if named and not (isinstance(value, int | float) and fits(value)):
                raise ArgumentError(
                    f"MODEL: {source}: its configuration has {printable(str(key))} = "
                    f"{printable(repr(value))[:40]}, expected {expected}."
                )


def _folder_of(location: str) -> Path:
    """Find the folder with the files; for a hub name, in the local cache."""
    if Path(location).is_dir():
        return Path(location)
    cached = try_to_load_from_cache(location, "config.json")
    return Path(cached).parent if isinstance(cached, str) else Path(location)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().split("\n")]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")[:200]


def _check_floats(source: str, location: str, model: nn.Module, unused: Any) -> None:
    """Refuse weights of integers or 8-bit floats, whose scales the model would not apply."""
    if getattr(model, "hf_quantizer", None):
        return
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    for name, kind in storage.tensor_types(_folder_of(location)).items():
        used = name not in unused and name.rpartition(".")[2] not in buffers
        if used and kind not in ("F64", "F32", "F16", "BF16"):
            raise RunError(
                f"MODEL: {source}: {name} is stored as {kind}, expected floats of 16 bits or more: "
                "its quantisation is not known; give the weights before they were quantised."
            )


def _check_left_over(source: str, names: list[str], model: nn.Module) -> None:
    """Refuse weights of additional layers; warn of other weights that the model does not use."""
    state = model.state_dict()
    numbered = {_NUMBER.sub(".N.", name) for name in state}
    layers = {_IN_LAYER.sub(r"\1", name) for name in state}
    others = [name for name in names if _IN_LAYER.sub(r"\1", name) not in layers]
    if layers == {*state}:  # the model has no layer
        numbered |= {_NUMBER.sub(".N.", name) for name in others if _NUMBER.search(name)}
    if extra := [name for name in others if _NUMBER.sub(".N.", name) in numbered]:
        raise RunError(
            f"MODEL: {source} holds weights of more layers than its configuration has "
            f"({len(extra)} tensors, the first {extra[0]}); take the configuration that they were "
            "saved with."
        )
    if names:
        warnings.warn(
            f"MODEL: {source} holds {len(names)} tensors that the model does not use, the first "
            f"{names[0]}",
            stacklevel=4,
        )


def load(source: AnyPath, *, task: str = "causal-lm") -> tuple[PreTrainedModel, Any]:
    """Load a saved model and its tokeniser, without a network and without foreign code.

    Args:
        source: a folder that `save_pretrained` wrote, a run folder of `hessblocks train`, a GGUF
            file, or a name in the local Hugging Face cache. Packed weights (compressed-tensors,
            torchao, MXFP4) become floats.
        task: causal-lm, masked-lm or classification; the same word is the `loss` of `Problem`.

    Returns:
        The model in evaluation mode and float32, and its tokeniser; None where it has none.

    Raises:
        ArgumentError: there is no such model, or it has no weights for the task.
        RunError: a name that is not in the local cache, damaged files, or weights that are not
            finite, are quantised by other methods or belong to additional layers.

    Warns:
        UserWarning: the files have weights that the model does not use.

    Examples:
        >>> import tempfile, hessblocks as hb
        >>> model = hb.build("sas-p", depth=1, width=16, heads=2, vocab_size=20, context=8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     loaded, tokenizer = hb.load(folder)
        >>> loaded.num_parameters() == model.num_parameters(), tokenizer
        (True, None)
    """
    check_name("task", task, TASKS)
    model, saved = load_saved(str(source), task)
    return model, saved.tokenizer()


def load_saved(source: str, task: str) -> tuple[PreTrainedModel, Saved]:
    """Load a model like `load`; return it with its files instead of the tokeniser.

    Args:
        source: see `load`.
        task: a name in `TASKS`.

    Returns:
        The model, and its files.

    Raises:
        ArgumentError: see `load`.
        RunError: see `load`.
    """
    _, auto, lacking = TASKS[task]
    saved = Saved.at(source)
    fitting = saved.class_of(auto)
    if fitting is None or (saved.kinds and fitting not in saved.kinds):
        kind = saved.kinds[0] if saved.kinds else type(saved.config).__name__
        tasks = [name for name, (_, head, _) in TASKS.items() if saved.class_of(head) == kind]
        advice = f"; its task is {tasks[0]}" if tasks else ""
        expected = {"causal-lm": "a causal language model"}.get(task, f"a model for {task}")
        raise ArgumentError(
            f"MODEL: {source} is a {kind}, which gives no {lacking}; expected {expected}{advice}."
        )
    model, report = saved.load(auto)
    if report["missing_keys"]:
        names = ", ".join(sorted(report["missing_keys"])[:3])
        raise ArgumentError(
            f"MODEL: {source} has no weights for {names}; expected a model of {task} with its head."
        )
    _check_left_over(source, sorted(report["unexpected_keys"]), model)
    return model.eval(), saved
