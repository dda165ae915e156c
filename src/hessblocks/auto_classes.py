"""Register our models with the Auto classes of transformers, without importing either early.

`AutoConfig` gets a stand-in class. transformers reads the configuration of a saved model first. The
stand-in then imports `hessblocks.models`, which registers the real classes. (An import as soon as
transformers' auto module is loaded would be too early: `transformers.modeling_utils` loads that
module half-way through its own import.)

`attn_implementation="second_order"` is registered in the same way, as soon as transformers has
registered its own attention functions.
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
"""Module that defines `AutoConfig`."""
MODELING = "transformers.modeling_utils"
"""Module that defines the attention functions."""
SECOND_ORDER = "second_order"
"""Name of the attention that has second derivatives and linear memory."""


class StandIn:
    """Placeholder for a configuration class, which transformers replaces by the real one."""

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


class _ImportHook(MetaPathFinder):
    """Import hook that calls a function after a module is imported for the first time."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Find the module by the other finders, and call the function after its execution."""
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
    """Register configurations and models: now, or as soon as transformers is imported."""
    for name, then in ((AUTO, _register), (MODELING, _register_attention)):
        if name in sys.modules:
            then(sys.modules[name])
        else:
            sys.meta_path.insert(0, _ImportHook(name, then))
