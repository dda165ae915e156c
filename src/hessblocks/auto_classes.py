"""The Auto classes of Hugging Face transformers know our models, without either being imported early.

`AutoConfig` is given a stand-in. Looking at a saved model begins with its configuration, and the
stand-in answers by importing `hessblocks.models`, which registers the real classes. (Importing them as
soon as transformers' auto module is loaded would be too early: `transformers.modeling_utils` loads that
module half-way through its own import.)
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODEL_TYPE = "hessblocks"
AUTO = "transformers.models.auto.configuration_auto"
"""The module of `AutoConfig`."""


class StandIn:
    """Stands where transformers expects a configuration class, until that is imported."""

    model_type = MODEL_TYPE

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        """The real configuration."""
        return _configuration()(*arguments, **keywords)

    @classmethod
    def from_dict(cls, *arguments: Any, **keywords: Any) -> Any:
        """The real configuration, as `AutoConfig.from_pretrained` reads it."""
        return _configuration().from_dict(*arguments, **keywords)


def _configuration() -> Any:
    return importlib.import_module("hessblocks.models").HessblocksConfig


class _Watch(MetaPathFinder):
    """Sees the module of `AutoConfig` imported, once."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Let the others find the module; add the stand-in when it has been executed."""
        if fullname != AUTO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                _register(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _register(module: Any) -> None:
    module.AutoConfig.register(MODEL_TYPE, StandIn)


def announce() -> None:
    """Register the stand-in: now where transformers' auto module is loaded, else when it will be."""
    if AUTO in sys.modules:
        _register(sys.modules[AUTO])
    else:
        sys.meta_path.insert(0, _Watch())
