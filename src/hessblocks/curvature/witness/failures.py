"""Re-raise torch's out-of-memory and missing-derivative errors as a RunError with advice."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hessblocks.errors import HessblocksError, RunError, out_of_memory

OTHER_OPERATIONS = (
    "use torch.utils.checkpoint with use_reentrant=False "
    '(gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})), '
    "switch checkpointing or reversible layers off, or write this part in operations of torch"
)

TWICE = "torch cannot differentiate a part of the model twice ({}); "

ADVICE = {
    "index out of range in self": (
        "{}: the model looks something up that it does not have; keep token "
        "ids below its vocabulary, and sequences as short as its positions"
    ),
    "no padding token is defined": (
        "{}: the model finds the last token of a row by its padding; set "
        "model.config.pad_token_id, or give batches of one row"
    ),
    "gloo|NCCL|Connection (reset|closed) by peer|Broken pipe": (
        "another process has ended, or has not answered within the timeout of "
        "torch.distributed.init_process_group ({}); end those that are left and start all again"
    ),
    "[Ii]nference tensor": (
        "the model holds a tensor that was made under torch.inference_mode() ({}); "
        "build or load it outside, or give copy.deepcopy(model)"
    ),
    "SparseTensorImpl|SparseCPU|SparseCUDA": (
        "a sparse tensor inside the model has no second derivative ({}); make it dense "
        "(sparse=False, .to_dense())"
    ),
    "embedding_bag": TWICE + "use nn.Embedding and .sum(1) or .mean(1) of what it gives",
    "(?i)flex_?attention": TWICE + "use model.set_attn_implementation('sdpa')",
    "torch.func.* saved tensor hooks|jvp function|setup_context": (
        "the model's forward pass uses torch.func in a way that its own second derivative cannot "
        "follow ({}); write it with torch.autograd.grad(..., create_graph=True)"
    ),
    "derivative for .* not implemented|not support backward|double backward|"
    "once_differentiable": TWICE + "use another form of it",
}
"""Advice for errors of torch or transformers, by pattern; {} is the error's first line."""


@contextmanager
def readable_errors() -> Iterator[None]:
    """Re-raise known errors of torch and transformers as a `RunError` with advice.

    Raises:
        RunError: there was not enough memory, or the error is one of `ADVICE`.
    """
    try:
        yield
    except HessblocksError:
        raise
    except (IndexError, ValueError, RuntimeError, MemoryError) as error:
        if advice := _advice(error):
            raise RunError(f"curvature: {advice}") from error
        raise


@contextmanager
def named_in_errors(functions: Sequence[str]) -> Iterator[None]:
    """Re-raise an error of a derivative as a RunError that names the users' autograd Functions.

    Args:
        functions: names of these Functions; if empty, errors are not changed.

    Raises:
        RunError: a derivative failed.
    """
    try:
        yield
    except HessblocksError:
        raise
    except Exception as error:
        if not functions or out_of_memory(error):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"curvature: the autograd Function {', '.join(functions)} cannot be differentiated as "
            f"curvature needs it ({first}); {OTHER_OPERATIONS}"
        ) from error


def _advice(error: Exception) -> str | None:
    """Return the advice for a known error of torch or transformers, else None."""
    if out_of_memory(error):
        return (
            "out of memory; lower memory_limit, take shorter sequences or fewer probes, or leave "
            "out the map; what is finished is kept"
        )
    text = str(error)
    for pattern, advice in ADVICE.items():
        if re.search(pattern, text):
            return advice.format(text.splitlines()[0].rstrip("."))
    return None
