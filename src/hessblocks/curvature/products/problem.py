"""Model, data and loss as one twice differentiable function of the parameters.

L(θ) = Σ_batches Σ_valid ℓ(f(θ)) / N with N the valid tokens (or rows) of all batches. So L does not
depend on ragged batches, padding or the split into batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.curvature import losses, model_state
from hessblocks.curvature.groups import plain_model
from hessblocks.curvature.products.calling import Params, as_module, logits_of
from hessblocks.curvature.products.distributed import (
    WHOLE,
    GatheredParameters,
    all_reduce,
    check_processes_agree,
    is_sharded,
    local_rows,
    processes,
    rows_like,
)
from hessblocks.curvature.products.forward import Forward
from hessblocks.curvature.products.passes import PassPlan, make_plan
from hessblocks.curvature.products.repeatability import notice_randomness
from hessblocks.curvature.witness import readable_errors
from hessblocks.errors import ArgumentError, RunError, check_whole
from hessblocks.linalg import Operand, default_limit


class Problem(Operand):
    """Mean loss over the valid tokens of a set of batches, as a function of the parameters.

    Examples:
        >>> import torch, hessblocks as hb
        >>> model = hb.build("sas-p", depth=1, width=8, heads=2, vocab_size=20, context=8)
        >>> hb.Problem(model, {"input_ids": torch.randint(20, (4, 8))})  # loss of the next token
        Problem(HessblocksForCausalLM, trainable parameters 890, rows 4, batches 1, loss causal-lm)
        >>> data = [(torch.ones(5, 2), torch.zeros(5, 1)) for _ in range(3)]  # or a DataLoader
        >>> hb.Problem(torch.nn.Linear(2, 1), data, torch.nn.MSELoss())
        Problem(Linear, trainable parameters 3, rows 15, batches 3, loss MSELoss)
    """

    _graphs: tuple[Hashable, tuple[float, ...], list[Any]] | None
    """What kept graphs are for, checksums of the model when they were built, and the graphs."""
    _noted: tuple[Hashable, Hashable] | None
    """State of model, loss and batches when a block began, or after the last forward pass in it;
    None before the first."""
    _ran: bool
    """Whether there was a forward pass since `_noted`."""

    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        batches: Iterable[Any],
        loss: str | losses.LossFunction = "causal-lm",
        *,
        params: Params | None = None,
        memory_limit: int | None = None,
        shard: str | None = None,
        num_batches: int | None = None,
    ) -> None:
        """Read the batches once; nothing is computed yet.

        Args:
            model: any module that returns logits (a tensor, `.logits`, or first in a tuple). Each
                product uses its current state, in evaluation mode. Or a function of (params,
                inputs), with `params`. Sampled gradients also take a model that FSDP2's
                `fully_shard` has sharded; then all processes give the same batches.
            batches: dicts of keyword arguments with `labels`, pairs (inputs, labels), or inputs
                alone; a list, a single dict, or a DataLoader. Batches of a loader are cached if
                they fit `memory_limit`; else each product reads the loader again, in the same
                order.
            loss: `causal-lm` (next token; labels are the unshifted input tokens; without labels,
                the inputs except padding are labels), `masked-lm`, `seq2seq` (encoder-decoders;
                labels of the decoder), `classification`, `regression` (squared error, mean over
                entries); a loss module of torch such as `nn.CrossEntropyLoss(weight=...)` or its
                function, with all options; or a callable (outputs, batch) that returns the
                losses of the valid tokens or rows. Labels of −100 are ignored.
            params: parameters of a function: tensors by name (`hidden.weight`) or in a list (`0`,
                `1`, …), in the form that the function takes. Groups name the parameters of
                `problem.model`, a module that shares memory with `params`.
            memory_limit: bytes to use besides model and data; it determines the size of
                microbatches and of batches of vectors, and bounds the cache of a loader. None: a
                quarter of the machine's memory. With a callable loss, a limit asserts that the
                loss's rows do not depend on each other.
            shard: `batches`: several processes (torchrun) with the same model and the same batches
                divide the rows, with one all-reduce per product. None: each process works alone.
            num_batches: use only the first `num_batches` batches; None: all.

        Raises:
            ArgumentError: a name in place of a model, a function without `params` or a module
                with them, no trainable parameters, complex ones or some without values, no batches,
                an iterator with more batches than `memory_limit` allows to cache, batches of an
                unknown form, an unknown loss or that of another task than the model's, a bad limit,
                parameters sharded otherwise than by `fully_shard`, `shard` with such a model or
                without a process group, or processes with different weights or batches.
            RunError: another process does not answer within the process group's timeout.
        """
        loss, self._loss_of = losses.loss_of(loss)
        model = as_module(model, params)
        self.model = plain_model(model, sharded=True)
        losses.check_task(self.model, loss)
        self.sharded = is_sharded(self.model)
        self.loss = loss
        self.processes = processes(shard, sharded=self.sharded)
        if memory_limit is not None:
            check_whole(1, memory_limit=memory_limit)
        self.memory_limit = memory_limit
        with model_state.exclusive(self.model):
            model_state.check_parameters(self.model)
            self.device = next(p.device for p in self.model.parameters() if p.requires_grad)
        notice_randomness(model, batches)
        self.batches = losses.Batches(
            batches,
            self.device,
            limit=memory_limit or default_limit(torch.device("cpu")),
            number=num_batches,
        )
        check_processes_agree(self.model, self.batches, self.processes)
        self._blocks = 0
        self.warned_of_precision: set[torch.dtype] = set()
        self._forget()

    def __repr__(self) -> str:
        """Show model, parameters, data and loss, on one line."""
        entries, rows = sum(self.entries.values()), self.batches.rows
        loss = self.loss if isinstance(self.loss, str) else type(self.loss).__name__
        return (
            f"Problem({type(self.model).__name__}, trainable parameters {entries:,}, rows "
            f"{sum(rows):,}, batches {len(rows):,}, loss {loss})"
        )

    @property
    def parameters(self) -> dict[str, Float[Tensor, "..."]]:
        """Trainable parameters by name, without gradient history; tied ones appear once.

        Of a sharded model, these are this process's rows.
        """
        with model_state.exclusive(self.model):
            named = self.model.named_parameters()
            return {name: local_rows(p) for name, p in named if p.requires_grad}

    @property
    def weights(self) -> dict[str, Float[Tensor, "..."]]:
        """All parameters by name, frozen ones included."""
        with model_state.exclusive(self.model):
            return {name: local_rows(p) for name, p in self.model.named_parameters()}

    @property
    def whole_parameters(self) -> Mapping[str, Float[Tensor, "..."]]:
        """Trainable parameters by name; those of a sharded model are gathered one at a time."""
        return GatheredParameters(self.model) if self.sharded else self.parameters

    def local_rows(self, name: str, tensor: Float[Tensor, "..."]) -> Float[Tensor, "rows ..."]:
        """Slice this process's rows of a tensor as large as a parameter; all, if that is whole."""
        return rows_like(tensor, self.model.get_parameter(name)) if self.sharded else tensor

    def sum_over_rows(self, share: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Sum dot products of the processes' rows, if the model is sharded.

        Returns:
            The sum, on the device of `share`.
        """
        if not self.sharded:
            return share
        total = share.to(self.device)  # NCCL takes no tensors on a CPU
        all_reduce(total)
        return total.to(share.device)

    def check_whole(self) -> None:
        """Check that the model's parameters are not sharded.

        Raises:
            ArgumentError: they are.
        """
        if self.sharded:
            raise ArgumentError(WHOLE)

    @property
    def entries(self) -> dict[str, int]:
        """Number of entries of each trainable parameter, over all processes."""
        with model_state.exclusive(self.model):
            return {n: p.numel() for n, p in self.model.named_parameters() if p.requires_grad}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the graphs of products until the outermost block ends.

        Without it each product builds its own. Estimators enter such a block themselves.

        Raises:
            ArgumentError: an active context, such as autocast, would change the numbers; or model,
                loss or batches were changed since the outermost block began.

        Examples:
            >>> import torch, hessblocks as hb
            >>> data = [(torch.ones(5, 2), torch.zeros(5, 1))]
            >>> problem = hb.Problem(torch.nn.Linear(2, 1), data, "regression")
            >>> with problem.kept():
            ...     values = [problem.value() for _ in range(2)]
        """
        with model_state.exclusive(self.model):
            model_state.check_contexts(self.model, self.device)
            present = self._present()
            if self._blocks and not self._ran and self._noted != present:
                raise self._changed()
            if not self._blocks and self._noted and self._noted[0] != present[0]:
                self._forget()
            if not self._blocks:
                self._noted, self._ran = present, False
            self._blocks += 1
        try:
            yield
        finally:
            with model_state.exclusive(self.model):
                self._blocks -= 1
                if not self._blocks:
                    self._graphs = None

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Enter `kept` for one computation, with the model's lock and readable errors."""
        with self.kept(), model_state.exclusive(self.model), readable_errors():
            try:
                yield
            except Exception:
                self._graphs = None
                raise
            finally:
                # a forward pass may change the model, as a hook's list
                if self._ran and self._blocks > 1:
                    self._noted, self._ran = self._present(), False

    def graphs(self, key: Hashable, fresh: Iterable[Any]) -> Iterable[Any]:
        """Return graphs, cached inside of `kept` if the plan allows.

        Args:
            key: what the graphs are for.
            fresh: iterator that builds the graphs of all microbatches.

        Returns:
            The graphs of all microbatches, or `fresh`.

        Raises:
            ArgumentError: weights or buffers were changed since the cached graphs were built.
        """
        if not self.keeps_graphs:
            return fresh
        sums = model_state.checksums([*self.weights.values(), *self.model.buffers()])
        graphs = self._graphs
        if graphs is None or graphs[0] != key:
            graphs = self._graphs = None  # frees the memory before other graphs are built
            graphs = self._graphs = (key, sums, list(fresh))
        if graphs[1] != sums:
            raise self._changed()
        return graphs[2]

    @property
    def planned(self) -> bool:
        """Whether products go by a plan: inside of a block around them, or since there is one."""
        return self._blocks > 1 or "plan" in vars(self)

    @property
    def keeps_graphs(self) -> bool:
        """Whether products share graphs: inside of a block around them, if the plan allows."""
        return self._blocks > 1 and self.plan.hold

    def _loss_buffers(self) -> list[Tensor]:
        return [*self.loss.buffers()] if isinstance(self.loss, nn.Module) else []

    def _present(self) -> tuple[Hashable, Hashable]:
        """Return the form of model, loss and batches, and the versions of weights and buffers."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *self._loss_buffers()]
        versions = tuple(t._version for t in tensors if not t.is_inference())
        form = model_state.form_of(self.model, self.loss)
        # the count N may be a sum of class weights
        sums = model_state.checksums(self._loss_buffers())
        return (form, sums, self.batches.versions), versions

    @staticmethod
    def _changed() -> ArgumentError:
        return ArgumentError(
            "model: it, its loss or its batches were changed inside of kept(), whose products "
            "share what was computed before; leave the block before you change them"
        )

    def _forget(self) -> None:
        """Drop the plans, the count N, and the mode of the forward pass."""
        for name in ("plan", "gradient_plan", "valid"):
            vars(self).pop(name, None)
        self.checked: set[frozenset[str]] = set()
        """Parameters of a product alone whose pass was compared with another."""
        self.pushes = True
        """Whether forward mode may work for the model."""
        self.move_to(self.model)

    def move_to(self, model: nn.Module) -> None:
        """Replace the model, for example by a copy in float64; keep the plan."""
        self.model = model
        self._graphs = None
        self._run = Forward(model, self.loss, sharded=self.sharded)
        self._positions = losses.TextPositions(model)
        self._noted, self._ran = None, False

    @cached_property
    def plan(self) -> PassPlan:
        """Plan of microbatches and memory, measured on one row at the first access."""
        return self._made_plan(twice=True)

    @cached_property
    def valid(self) -> float:
        """Number N of valid tokens or rows of all batches; 1 for a loss that is a sum.

        Raises:
            ArgumentError: no token or row is valid.
        """
        if isinstance(self.loss, nn.Module) and self.loss.reduction == "sum":
            return 1
        with torch.no_grad():
            count = sum(map(self._count, self.batches))
        if count == 0:
            raise ArgumentError("batches: every label is ignored; expected at least one valid")
        return count

    def with_losses(
        self, change: Callable[[losses.BatchLoss, losses.Batch], losses.BatchLoss]
    ) -> Problem:
        """Copy the problem, with another loss for each batch, such as another second derivative.

        Args:
            change: maps the loss of a batch, and the batch, to the new loss.

        Returns:
            A problem with the same model and batches.

        Raises:
            ArgumentError: the loss is a callable, or `change` raises one.
        """
        loss_of, first = self._loss_of, self.batches.widest_row
        if loss_of is None:
            raise ArgumentError(
                "loss: a callable does not tell which outputs belong to which label; use a loss by "
                "name or a loss module of torch"
            )
        change(loss_of(first), first)
        copied = copy.copy(self)
        copied._graphs, copied._blocks = None, 0
        copied._loss_of = lambda batch: change(loss_of(batch), batch)
        return copied

    def with_loss(self, loss: losses.BatchLoss) -> Problem:
        """Copy the problem, with one loss for every batch, whose sum counts; no lazy logits."""
        copied = self.without_lazy_logits()
        copied._loss_of, vars(copied)["valid"] = lambda batch: loss, 1.0
        return copied

    def without_lazy_logits(self) -> Problem:
        """Copy the problem, without lazy logits."""
        copied = copy.copy(self)
        copied._run = self._run.without_lazy_logits()
        return copied

    @cached_property
    def gradient_plan(self) -> PassPlan:
        """Plan of microbatches and memory for gradients alone."""
        return self._made_plan(twice=False)

    def _made_plan(self, *, twice: bool) -> PassPlan:
        with model_state.exclusive(self.model), readable_errors():
            self._noted = self._noted or self._present()
            return make_plan(self, twice=twice)

    def value(
        self, parameters: Mapping[str, Float[Tensor, "..."]] | None = None, *, twice: bool = True
    ) -> float:
        """Compute L(θ), in nats per token for the cross-entropies.

        Args:
            parameters: all trainable parameters by name, shaped as in `self.parameters`; None: the
                current ones.
            twice: whether second derivatives will be computed; if not, the plan is that of a
                gradient.

        Returns:
            The loss.

        Raises:
            ArgumentError: a parameter is missing, unknown or has another shape.
            RunError: the loss is not finite.
        """
        total, twice = 0.0, twice and not self.sharded
        given = self.parameters if parameters is None else parameters
        expected, found = ({n: p.shape for n, p in of.items()} for of in (self.parameters, given))
        if found != expected:
            wrong = min(dict(found.items() ^ expected.items()))
            raise ArgumentError(
                f"parameters: {wrong!r}: expected {expected.get(wrong)}, got {found.get(wrong)}"
            )
        with self.computing(), torch.no_grad():
            for batch in (self.plan if twice else self.gradient_plan).passes:
                pair = self.forward(batch, given, twice=twice)
                end = losses.make_loss_node(*pair, 1 / self.valid)
                total += self.check_finite(end.total(), batch)
        return self.processes.summed(total, self.device)

    def forward(
        self,
        batch: losses.Batch,
        parameters: Mapping[str, Float[Tensor, "..."]],
        *,
        twice: bool = True,
    ) -> tuple[losses.Readout, losses.BatchLoss]:
        """Compute one batch's logits at given parameters; return also its loss as a function.

        Args:
            batch: one of `batches`, or a microbatch of it.
            parameters: all trainable parameters by name.
            twice: whether second derivatives will be computed; if not, torch's fused kernels are
                used.

        Returns:
            The logits, perhaps lazy, with their graph; and the batch's loss.

        Raises:
            ArgumentError: the model is sharded, and the parameters are not its current ones.
            RunError: the model returns no logits, or inference mode is on.
        """
        if torch.is_inference_mode_enabled():  # every derivative would be zero
            raise RunError(
                "curvature: torch.inference_mode() allows no derivatives; leave it, or use "
                "torch.no_grad() there"
            )
        if self.sharded and any(
            p.data_ptr() != parameters[n].data_ptr() for n, p in self.parameters.items()
        ):
            raise ArgumentError(WHOLE)
        batch = self._positions.put_into(
            batch,
            lambda row: logits_of(self._run.outputs(row, parameters, twice=twice, by_rows=False)),
        )
        loss = None if self._loss_of is None else self._loss_of(batch)
        by_rows, self._ran = isinstance(loss, losses.CrossEntropy), True
        outputs = self._run.outputs(batch, parameters, twice=twice, by_rows=by_rows)
        logits = logits_of(outputs)
        if loss is None:
            assert callable(self.loss)
            loss = losses.callable_loss(self.loss, batch, outputs, logits)
        return losses.readout_of(logits), loss

    @property
    def backward(self) -> Callable[[], AbstractContextManager[object]]:
        """Context manager in which a graph of `forward` is differentiated (checkpointed parts)."""
        return self._run.backward

    def check_finite(self, total: float, batch: losses.Batch) -> float:
        """Check that the loss is finite.

        Returns:
            `total`.

        Raises:
            RunError: it is not finite; the message names the batch.
        """
        if not abs(total) < float("inf"):
            half = any(p.element_size() < 4 for p in self.parameters.values())
            raise RunError(
                f"curvature: the loss of batch {batch.number} (counted from 0) is {total}; "
                "look at its inputs" + (", or use float32 or float64 parameters" if half else "")
            )
        return total

    def _count(self, batch: losses.Batch) -> float:
        if self._loss_of is not None:
            return self._loss_of(batch).valid
        return self.forward(batch, self.parameters, twice=not self.sharded)[1].valid
