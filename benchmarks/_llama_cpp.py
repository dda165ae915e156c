"""llama.cpp's runtime from the wheel `xllamacpp`, by its C interface: logits of a GGUF file.

The structures are those of llama.h of autumn 2026 (b11549); `logits` checks a default of each.
"""

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

I32, U32, F32, PTR, BOOL = (
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_float,
    ctypes.c_void_p,
    ctypes.c_bool,
)


def _fields(**kinds: tuple[type, str]) -> list[tuple[str, type]]:
    return [(name, kind) for kind, names in kinds.values() for name in names.split()]


class ModelParams(ctypes.Structure):
    _fields_ = _fields(
        a=(PTR, "devices overrides"),
        b=(I32, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
        c=(PTR, "tensor_split progress progress_data kv_overrides"),
        d=(BOOL, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
    )


class ContextParams(ctypes.Structure):
    _fields_ = _fields(
        a=(U32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
        b=(I32, "n_threads n_threads_batch ctx_type rope_scaling pooling attention flash"),
        c=(F32, "rope_base rope_scale yarn_ext yarn_attn yarn_fast yarn_slow"),
        d=(U32, "yarn_orig_ctx"),
        e=(F32, "defrag"),
        f=(PTR, "cb_eval cb_data"),
        g=(I32, "type_k type_v"),
        h=(PTR, "abort abort_data later"),
        i=(BOOL, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        j=(PTR, "samplers"),
        k=(ctypes.c_size_t, "n_samplers"),
        l=(PTR, "ctx_other"),
    )


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", I32),
        ("token", ctypes.POINTER(I32)),
        ("embd", PTR),
        ("pos", ctypes.POINTER(I32)),
        ("n_seq_id", ctypes.POINTER(I32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(I32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def library() -> ctypes.CDLL:
    """Load llama.cpp, with the signatures of the functions that are called."""
    spec = importlib.util.find_spec("xllamacpp")
    assert spec, "pip install xllamacpp"
    (path,) = Path(str(spec.origin)).parent.glob("xllamacpp*.so")
    found = ctypes.CDLL(str(path))
    for name, result, arguments in (
        ("llama_model_default_params", ModelParams, []),
        ("llama_context_default_params", ContextParams, []),
        ("llama_model_load_from_file", PTR, [ctypes.c_char_p, ModelParams]),
        ("llama_init_from_model", PTR, [PTR, ContextParams]),
        ("llama_batch_init", Batch, [I32, I32, I32]),
        ("llama_batch_free", None, [Batch]),
        ("llama_decode", I32, [PTR, Batch]),
        ("llama_get_logits", ctypes.POINTER(F32), [PTR]),
        ("llama_get_memory", PTR, [PTR]),
        ("llama_memory_clear", None, [PTR, BOOL]),
        ("llama_free", None, [PTR]),
        ("llama_model_free", None, [PTR]),
    ):
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, PTR)
def _quiet(level: int, text: bytes, data: object) -> None:
    """Drop llama.cpp's log."""


class Opened:
    """A GGUF file in llama.cpp on one thread of a CPU, for windows of at most `tokens` tokens."""

    def __init__(self, path: Path, tokens: int) -> None:
        lib = self._lib = library()
        lib.llama_log_set(_quiet, None)
        lib.llama_backend_init()
        model_params, params = lib.llama_model_default_params(), lib.llama_context_default_params()
        assert (params.n_batch, params.offload_kqv) == (2048, True), (
            "another llama.h than the structures"
        )
        model_params.n_gpu_layers = 0
        self._model = lib.llama_model_load_from_file(os.fsencode(path), model_params)
        assert self._model, f"llama.cpp does not load {path}"
        params.n_ctx = params.n_batch = params.n_ubatch = tokens
        params.n_threads = params.n_threads_batch = 1
        self._context = lib.llama_init_from_model(self._model, params)
        self._batch = lib.llama_batch_init(tokens, 0, 1)

    def forget(self) -> None:
        """Empty the cache of keys and values."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def decode(self, ids: list[int], first: int = 0, *, every: bool = False) -> None:
        """Run tokens that begin at a position; logits of the last one, or of every one."""
        batch = self._batch
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place] = token, first + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = int(every or place == len(ids) - 1)
        assert self._lib.llama_decode(self._context, batch) == 0

    def logits(self, rows: int, vocabulary: int) -> np.ndarray:
        """Copy the logits of the last call."""
        found = self._lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(found, (rows, vocabulary)).copy()

    def close(self) -> None:
        """Free the model."""
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


def logits(path: Path, windows: np.ndarray, vocabulary: int) -> Iterator[np.ndarray]:
    """Yield the logits (tokens, vocabulary) of each window of token ids."""
    with contextlib.closing(Opened(path, windows.shape[1])) as model:
        for window in windows:
            model.forget()
            model.decode(window.tolist(), every=True)
            yield model.logits(len(window), vocabulary)
