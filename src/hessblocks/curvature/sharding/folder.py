"""Read each process's rows of all tensors from a folder of safetensors."""

import contextlib
import hashlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hessblocks.curvature.sharding.exchange import Cut
from hessblocks.errors import ArgumentError
from hessblocks.storage import check_model_folder, check_own_code, weight_files


class WeightsFolder:
    """Saved Hugging Face model whose weights are read row by row."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        """Read the index, which maps tensors to files.

        Args:
            folder: folder with `config.json` and `model.safetensors`, or several files and their
                index.

        Raises:
            ArgumentError: the folder has no safetensors.
            RunError: the configuration is damaged or does not fit the weights.
        """
        self._folder = Path(folder)
        check_model_folder(self._folder)
        if not (files := weight_files(self._folder)):
            raise ArgumentError(
                f"model: {folder} has no model.safetensors; save it with "
                "model.save_pretrained(folder)"
            )
        try:
            opened = [safe_open(str(file), framework="pt") for file in files]
        except (OSError, SafetensorError) as error:
            raise ArgumentError(f"model: {folder} cannot be read ({error})") from error
        self._files: dict[str, Any] = {}
        for file in opened:
            self._files |= dict.fromkeys(file.keys(), file)
        self._prefix = ""

    def empty_model(self) -> nn.Module:
        """Build the model of the configuration, without memory for its parameters.

        Returns:
            The model; its buffers are real.

        Raises:
            ArgumentError: the configuration names no class of transformers, needs remote code, or
                describes other parameters than the files.
        """
        from accelerate import init_empty_weights
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(
                self._folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # files from elsewhere may cause any kind of error
            why = str(error).strip().partition("\n")[0].rstrip(".")[:200]
            raise ArgumentError(
                f"model: {self._folder} holds no model that transformers knows ({why}); code that "
                "a folder brings along is never executed"
            ) from error
        check_own_code(f"model: {self._folder}", config)
        kind = _class_of(config)
        with init_empty_weights(include_buffers=False):
            model: Any = kind._from_config(config)
        model.tie_weights()
        self._prefix = f"{model.base_model_prefix}."
        for names in names_of(model).values():
            name, parameter = self._stored(names), model.get_parameter(names[0])
            stored = self._files[name].get_slice(name).get_shape()
            if tuple(stored) != tuple(parameter.shape):
                raise ArgumentError(
                    f"model: {names[0]!r} is {tuple(parameter.shape)} by config.json and "
                    f"{tuple(stored)} in the file; take the configuration that the weights were "
                    "saved with"
                )
        return cast("nn.Module", model)

    def rows(
        self, names: Sequence[str], cut: Cut, dtype: torch.dtype | None
    ) -> Shaped[Tensor, "own ..."]:
        """Read this process's rows of a tensor, stored under one of several names.

        Returns:
            The rows, in `dtype`, or in the file's dtype if `dtype` is None.
        """
        name = self._stored(names)
        file = self._files[name]
        rows: Tensor = (
            file.get_slice(name)[cut.own] if cut.shape else file.get_tensor(name)[None][cut.own]
        )
        return rows.to(dtype or rows.dtype).clone()

    def fill_buffers(self, model: nn.Module, device: torch.device) -> None:
        """Read the stored buffers, and move all buffers to the device."""
        for name, buffer in model.named_buffers():
            with contextlib.suppress(ArgumentError), torch.no_grad():
                stored = self._stored([name])
                buffer.copy_(self._files[stored].get_tensor(stored))
        for module in model.modules():
            for name, held in module._buffers.items():
                module._buffers[name] = None if held is None else held.to(device)

    def digest(self) -> str:
        """Hash names, dtypes and shapes of all tensors, and one row of each."""
        seen = hashlib.sha256()
        for name in sorted(self._files):
            stored = self._files[name].get_slice(name)
            seen.update(repr((name, stored.get_dtype(), stored.get_shape())).encode())
            row = stored[:1] if stored.get_shape() else self._files[name].get_tensor(name)
            seen.update(row.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return seen.hexdigest()

    def _stored(self, names: Sequence[str]) -> str:
        """Find the name in the files of a tensor that has these names in the model."""
        for name in names:
            for other in (name, name.removeprefix(self._prefix), self._prefix + name):
                if other in self._files:
                    return other
        raise ArgumentError(
            f"model: {self._folder} has no tensor {names[0]!r}; convert it: load it once with "
            "from_pretrained and save it with save_pretrained"
        )


def _class_of(config: Any) -> Any:
    """Find the model class that a configuration names, in transformers or by an Auto class."""
    import transformers

    (name,) = (config.architectures or ["none"])[:1]
    found = [getattr(transformers, name, None)]
    for auto in (
        value for key, value in vars(transformers).items() if key.startswith("AutoModelFor")
    ):
        found.append(auto._model_mapping.get(type(config), None))
    for kind in found:
        if getattr(kind, "__name__", None) == name:
            return kind
    raise ArgumentError(
        f"model: config.json names the class {name!r}, which transformers does not know; build the "
        "model and give sharded(model)"
    )


def names_of(model: nn.Module) -> dict[int, list[str]]:
    """List all names of every parameter, by its `id`."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names
