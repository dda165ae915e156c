"""Silence Hugging Face libraries and keep them offline; their errors are still shown."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from huggingface_hub import constants
from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Make transformers show only errors and send no request; restore its settings afterwards.

    `local_files_only` is not enough: even a lookup in the cache sends the hub a request, for the
    names of coding agents.
    """
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    offline, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide progress bars that know no settings: of GGUF files, and of compressed-tensors."""
    with redirect_stderr(io.StringIO()):
        yield
