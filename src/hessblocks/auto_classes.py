"""Register our models with the Auto classes of transformers, without importing either early.

`AutoConfig` is given a stand-in. Looking at a saved model begins with its configuration, and the
stand-in answers by importing `hessblocks.models`, which registers the real classes. (Importing them
as soon as transformers' auto module is loaded would be too early: `transformers.modeling_utils`
loads that module half-way through its own import.)

`attn_implementation="second_order"` becomes known in the same way, once transformers' own functions
are.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODEL_TYPE = "hessblocks"
AUTO = "transformers.models.auto.configuration_auto"
"""The module of `AutoConfig`."""
MODELING = "transformers.modeling_utils"
"""The module of the attention functions."""
SECOND_ORDER = "second_order"
"""Name of attention with two derivatives and linear memory."""


class StandIn:
    """Stand in for a configuration class until transformers asks for the real one."""

    model_type = MODEL_TYPE

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        """Make the real configuration."""
        return _configuration()(*arguments, **keywords)

    @classmethod
    def from_dict(cls, *arguments: Any, **keywords: Any) -> Any:
        """Build the real configuration, as `AutoConfig.from_pretrained` reads it."""
        return _configuration().from_dict(*arguments, **keywords)


def _configuration() -> Any:
    return importlib.import_module("hessblocks.models").HessblocksConfig


class _Watch(MetaPathFinder):
    """Sees a module imported, once."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Let the other finders find the module; register the classes once it has been executed."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _register(module: Any) -> None:
    module.AutoConfig.register(MODEL_TYPE, StandIn)


def _register_attention(module: Any) -> None:
    masks = importlib.import_module("transformers.masking_utils")
    module.AttentionInterface.register(SECOND_ORDER, _second_order)
    masks.AttentionMaskInterface.register(SECOND_ORDER, masks.sdpa_mask)


def _second_order(*arguments: Any, **keywords: Any) -> Any:
    return importlib.import_module("hessblocks.curvature").registered_attention(
        *arguments, **keywords
    )


def announce() -> None:
    """Register configurations and models: now if transformers is loaded, else as soon as it is."""
    for name, then in ((AUTO, _register), (MODELING, _register_attention)):
        if name in sys.modules:
            then(sys.modules[name])
        else:
            sys.meta_path.insert(0, _Watch(name, then))
