"""Annotated shapes are checked in every call of the package that a test makes.

The import hook of jaxtyping decorates each function and dataclass. What it decorates with is
replaced here by `checked`: beartype on the annotations that name a shape, and on no others. A wrong
word or number still meets the error of the package itself. Each function is checked in its first
calls of a test only, so that the suite hardly gets slower.
"""

import collections
import contextlib
import dataclasses
import functools
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

import jaxtyping
import torch
from beartype import beartype

SHAPE = re.compile(r"\b(Bool|Complex|Float|Inexact|Int|Integer|Num|Real|Shaped)\d*\[")

MOST = 4
"""Calls of a function that are checked in one test."""
CALLS: collections.Counter[Callable[..., Any]] = collections.Counter()
"""Calls of each function since the test began."""


def install() -> None:
    """Check shapes in whatever is imported of the packages from now on."""
    jaxtyping.jaxtyped = checked
    jaxtyping.install_import_hook(["hessblocks", "hessblocks_studies"], "beartype.beartype")


def checked(given: Any = None, *, typechecker: object = None) -> Any:
    """What the hook calls on every function and class."""
    if given is None:
        return checked
    if torch.compiler.is_compiling():  # a function defined inside a function that is being compiled
        return given
    if inspect.isclass(given):
        if dataclasses.is_dataclass(given) and "__init__" in vars(given):
            given.__init__ = checked(given.__init__)
        return given
    hints = given.__annotations__.values()
    shaped = any(_names_a_shape(hint, given.__globals__) for hint in hints)
    return _shapes_checked(given) if shaped and not hasattr(given, "shapes_checked") else given


def _shapes_checked(function: Callable[..., Any]) -> Callable[..., Any]:
    checker: Callable[..., Any] | None = None

    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        nonlocal checker
        if torch.compiler.is_compiling():
            return function(*args, **keywords)
        CALLS[function] += 1
        if CALLS[function] > MOST or jaxtyping.config.jaxtyping_disable:
            return function(*args, **keywords)
        checker = checker or beartype(_only_shapes(function))
        with CONTEXT:
            return checker(*args, **keywords)

    wrapper.shapes_checked = True  # type: ignore[attr-defined]
    return wrapper


def _only_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, annotated with shapes alone; names are looked up now, when all modules are
    there."""
    copy = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__annotations__ = {}
    for name, hint in function.__annotations__.items():
        if _names_a_shape(hint, function.__globals__):
            with contextlib.suppress(NameError):  # imported for type checkers only
                known = eval(hint, function.__globals__) if isinstance(hint, str) else hint
                copy.__annotations__[name] = known
    return copy


def _names_a_shape(hint: object, known: dict[str, Any]) -> bool:
    """Whether an annotation names a shape itself, or by a type of the module that does."""
    shaped, words = _read(hint if isinstance(hint, str) else repr(hint))
    return shaped or any(
        _read(repr(word))[0]
        for word in map(known.get, words)
        if word is not None and not inspect.isclass(word)
    )


@functools.cache
def _read(text: str) -> tuple[bool, tuple[str, ...]]:
    """Whether a text names a shape, and the names of types in it."""
    return SHAPE.search(text) is not None, tuple(re.findall(r"[A-Z]\w+", text))


CONTEXT = jaxtyping.jaxtyped("context")
"""Letters mean one number each within a call."""
