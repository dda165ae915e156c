"""Model, data and loss as one function of the parameters, which is differentiated twice.

L(θ) = Σ_batches Σ_valid ℓ(f(θ)) / N with N the valid tokens (or rows) of the whole set, so that
ragged batches, padding and the cut into batches do not change the answer.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessblocks.curvature import losses, model_state
from hessblocks.curvature.groups import plain_model
from hessblocks.curvature.products.calling import Params, as_module, logits_of
from hessblocks.curvature.products.distributed import check_all_alike, processes
from hessblocks.curvature.products.forward import Forward
from hessblocks.curvature.products.passes import Plan, make_plan
from hessblocks.curvature.products.repeatability import notice_randomness
from hessblocks.curvature.sharding import Cut, all_or_none, cuts_of, own_rows
from hessblocks.curvature.witness import readable_errors
from hessblocks.errors import ArgumentError, RunError, check_memory_limit
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

    holds_fingerprint = True
    """Walks over what a model reads pass it over: each would hold the one before."""

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
            model: any module that returns logits (a tensor, `.logits`, or first in a tuple). It is
                used as it stands when a product is asked for, in evaluation mode. One whose
                parameters are sharded over processes (`curvature.sharded`, FSDP2's `fully_shard`)
                stays so. Or a function of (params, inputs), with `params`.
            batches: dicts of keyword arguments with `labels`, pairs (inputs, labels), or inputs
                alone; a list, a single dict, or a DataLoader. What a loader gives is kept where it
                fits `memory_limit`; else the loader is read anew for each product, in the same
                order.
            loss: `causal-lm` (next token; labels are as the inputs, not moved; without labels,
                the inputs but for padding are labels), `masked-lm`, `seq2seq` (encoder-decoders;
                labels of the decoder), `classification`, `regression` (squared error, mean over
                entries); a loss module of torch such as `nn.CrossEntropyLoss(weight=...)` or its
                function, with its own options; or a callable (outputs, batch) that returns the
                losses of the valid tokens or rows. Labels of −100 are ignored.
            params: parameters of a function: tensors by name (`hidden.weight`) or in a list (`0`,
                `1`, …), in the form in which it takes them. Groups are those of `problem.model`, a
                module that shares their memory.
            memory_limit: bytes to use besides model and data; batches are cut and vectors taken
                together accordingly. None: a quarter of the machine's memory. With a callable loss
                a limit says that its rows do not depend on each other. It also bounds what is kept
                of a loader.
            shard: how several processes (torchrun) share the work, each given the same model; one
                all-reduce a product. `batches`: all are given the same batches, whose rows are
                dealt out. `vectors`: all are given the same batches, and the vectors of each
                product are dealt out. `own`: each is given batches of its own (a
                DistributedSampler), weighted by their valid tokens. None: each process by itself;
                `batches` where the model is sharded.
            num_batches: batches to take at most, the first ones; None: all.

        Raises:
            ArgumentError: a name in place of a model, a function without `params` or a module
                with them, no trainable parameters, complex ones or some
                without values, no batches, an iterator that gives more than may be kept, batches of
                an unknown form, an unknown loss or that of another task than the model's, a bad
                limit, parameters sharded in another way than by rows, or without layers, `shard`
                without a process group, or processes that were given different weights, or
                different batches where they should be the same.
        """
        loss, self._loss_of = losses.loss_of(loss)
        model = _module_of(model, params)
        self.model = plain_model(model, sharded=True)
        losses.check_task(self.model, loss)
        self.cuts: Mapping[str, Cut] = cuts_of(self.model)
        self.loss = loss
        self.processes = processes(shard, sharded=bool(self.cuts))
        if memory_limit is not None:
            check_memory_limit(memory_limit)
        self.memory_limit = memory_limit
        with model_state.exclusive(self.model):
            model_state.check_parameters(self.model)
        self.device = next(iter(self.parameters.values())).device
        notice_randomness(model, batches)
        self.batches = losses.Batches(
            batches,
            self.device,
            limit=memory_limit or default_limit(torch.device("cpu")),
            number=num_batches,
        )
        self._counted = self.batches.versions
        check_all_alike(self.model, self.batches, self.processes)
        with model_state.exclusive(self.model):
            self.note_form()
            self._forget()

    def __repr__(self) -> str:
        """Model, parameters, data and loss, on one line."""
        entries, rows = sum(self.entries.values()), self.batches.rows
        loss = self.loss if isinstance(self.loss, str) else type(self.loss).__name__
        return (
            f"Problem({type(self.model).__name__}, trainable parameters {entries:,}, rows "
            f"{sum(rows):,}, batches {len(rows):,}, loss {loss})"
        )

    @property
    def parameters(self) -> dict[str, Float[Tensor, "..."]]:
        """Trainable parameters by name, without gradient history; tied ones appear once.

        Of a sharded model these are the rows that this process holds.
        """
        with model_state.exclusive(self.model):
            named = self.model.named_parameters()
            return {name: self._held(name, p) for name, p in named if p.requires_grad}

    @property
    def weights(self) -> dict[str, Float[Tensor, "..."]]:
        """All parameters by name, frozen ones included."""
        with model_state.exclusive(self.model):
            return {name: self._held(name, p) for name, p in self.model.named_parameters()}

    def _held(self, name: str, parameter: Tensor) -> Tensor:
        return own_rows(parameter, self.cuts[name]) if self.cuts else parameter.detach()

    @property
    def entries(self) -> dict[str, int]:
        """Number of entries of each trainable parameter, those of other processes included."""
        with model_state.exclusive(self.model):
            return {n: p.numel() for n, p in self.model.named_parameters() if p.requires_grad}

    @property
    def state(self) -> tuple[Any, ...]:
        """Versions of parameters, buffers and kept batches; it changes when one of them does.

        What is written through `.data` is seen by checksums, but in batches.
        """
        held = [*self.weights.values(), *self.model.buffers()]
        # an optimiser counts up those that are sharded, and not the rows of them
        counted = [*self.model.parameters()] if self.cuts else []
        kept = tuple((t.data_ptr(), t._version) for t in held)
        sums = () if self.cuts else model_state.checksums(held)
        return kept, *(p._version for p in counted), sums, self.batches.versions

    def follow(self) -> None:
        """Count N anew if a batch was changed in place; forget everything if the model is another.

        Raises:
            ArgumentError: what is switched on around would change the numbers.
        """
        model_state.check_contexts(self.model, self.device)
        if (versions := self.batches.versions) != self._counted:
            vars(self).pop("valid", None)
            self._counted = versions
        before = self._fingerprint
        self.note_form()
        if self._fingerprint != before:
            self._forget()

    def note_form(self) -> None:
        """Fingerprint the model besides its weights, and the loss."""
        self._fingerprint: model_state.Fingerprint = model_state.fingerprint_of(
            self.model, self.loss
        )

    def _forget(self) -> None:
        """Forget how the model is called and what its passes need."""
        for name in ("plan", "gradient_plan", "valid"):
            vars(self).pop(name, None)
        model_state.forget_writes(self.model)
        self.precision_known = False
        self.move_to(self.model)

    def move_to(self, model: nn.Module) -> None:
        """Call another model from now on, such as a copy in float64; the plan stays."""
        self.model = model
        self.held: tuple[Any, list[Any]] | None = None
        self._run = Forward(model, self.loss, self.cuts)
        self._positions = losses.TextPositions(model)
        self.note_form()

    @cached_property
    def plan(self) -> Plan:
        """Cut of the batches into passes; measured on one row when first needed."""
        with model_state.exclusive(self.model), readable_errors():
            return make_plan(self)

    @cached_property
    def valid(self) -> float:
        """Count N of valid tokens or rows of the whole set; 1 for a loss that is a sum.

        Raises:
            ArgumentError: there is none.
        """
        if isinstance(self.loss, nn.Module) and self.loss.reduction == "sum":
            return 1
        with torch.no_grad():
            # asked for first: where the model is sharded, all must pass alike
            spare = replace(self.batches.widest_row, idle=True)
            idle = [spare] * self.processes.idle(len(self.batches), self.device)
            own = sum(self._count(batch) for batch in chain(self.batches, idle))
        count = self.processes.summed(own, self.device, of=("own",))
        if count == 0:
            raise ArgumentError("batches: every label is ignored; expected at least one valid")
        return count

    def with_losses(
        self, change: Callable[[losses.BatchLoss, losses.Batch], losses.BatchLoss]
    ) -> Problem:
        """Copy the problem, with another second derivative of its losses, or another way to it.

        Args:
            change: from the loss of a batch, and the batch, to the loss that is taken in its place.

        Returns:
            A problem of its own on the same model and batches.

        Raises:
            ArgumentError: the loss is a callable, or one that `change` refuses.
        """
        own, first = self._loss_of, self.batches.widest_row
        if own is None:
            raise ArgumentError(
                "loss: a callable does not tell which outputs belong to which label; use a loss by "
                "name or a loss module of torch"
            )
        change(own(first), first)
        other = copy.copy(self)
        other.held, other._loss_of = None, lambda batch: change(own(batch), batch)
        return other

    def without_lazy_logits(self) -> Problem:
        """Copy the problem, with logits that are made at once."""
        other = copy.copy(self)
        other._run = self._run.without_lazy_logits()
        return other

    @cached_property
    def gradient_plan(self) -> Plan:
        """Cut of the batches where no second derivative is asked for."""
        with model_state.exclusive(self.model), readable_errors():
            return make_plan(self, twice=False)

    def value(
        self, parameters: Mapping[str, Float[Tensor, "..."]] | None = None, *, twice: bool = True
    ) -> float:
        """Compute L(θ), in nats per token for the cross-entropies.

        Args:
            parameters: all trainable ones by name, as `parameters` has them; None: where the model
                stands.
            twice: whether second derivatives will be asked for; if not, the passes are those of a
                gradient.

        Returns:
            The loss.

        Raises:
            RunError: it is not finite.
        """
        own = 0.0
        with model_state.exclusive(self.model), torch.no_grad(), readable_errors():
            self.follow()
            for batch in (self.plan if twice else self.gradient_plan).passes:
                found = self.forward(batch, parameters or self.parameters, twice=twice)
                end = losses.make_loss_node(*found, 1 / self.valid)
                own += self.check_finite(end.total(), batch)
            self.note_form()  # a pass may have changed what it keeps of itself, as a hook's list
        return self.processes.summed(own, self.device, of=("batches", "own"))

    def forward(
        self,
        batch: losses.Batch,
        parameters: Mapping[str, Float[Tensor, "..."]],
        *,
        twice: bool = True,
    ) -> tuple[losses.Readout, losses.BatchLoss]:
        """Compute the logits of one batch at other parameters, and its loss as their function.

        Args:
            batch: one of `batches`, or a piece of it.
            parameters: all trainable parameters by name.
            twice: whether second derivatives will be asked for; if not, the model's own kernels are
                used.

        Returns:
            How the logits are made, with their graph, and the batch's loss.

        Raises:
            RunError: the model returns no logits, or autograd is off for good.
        """
        told = self._positions.put_into(
            batch,
            lambda row: self._forward(row, parameters, twice=twice)[0].hidden,
            partial(self.processes.most, device=self.device),
        )
        return self._forward(told, parameters, twice=twice)

    def _forward(
        self, batch: losses.Batch, parameters: Mapping[str, Float[Tensor, "..."]], *, twice: bool
    ) -> tuple[losses.Readout, losses.BatchLoss]:
        """Do as `forward`, with the batch as it is given."""
        if torch.is_inference_mode_enabled():  # every derivative would be zero
            raise RunError(
                "curvature: torch.inference_mode() allows no derivatives; leave it, or use "
                "torch.no_grad() there"
            )
        loss: losses.BatchLoss | None = None
        if batch.idle:
            loss = losses.IDLE
        elif self._loss_of is not None:
            loss = self._loss_of(batch)
        by_rows = isinstance(loss, losses.CrossEntropy)
        outputs = self._run.outputs(batch, parameters, twice=twice, by_rows=by_rows)
        logits = logits_of(outputs)
        if loss is None:
            assert callable(self.loss)
            loss = losses.callable_loss(self.loss, batch, outputs, logits)
        return losses.readout_of(logits), loss

    @property
    def backward(self) -> Callable[[], AbstractContextManager[object]]:
        """Context to differentiate a graph of `forward` in; recomputed parts meet the same state.

        Not of the problem: a graph that it holds keeps this, and would keep it alive.
        """
        return self._run.backward

    def check_finite(self, total: float, batch: losses.Batch) -> float:
        """Require a finite loss; if processes wait for each other, on all of them.

        Returns:
            The loss as it came.

        Raises:
            RunError: it is not, here or elsewhere; the message says in which batch.
        """
        with all_or_none(self.device) if self.cuts else nullcontext():
            if not abs(total) < float("inf"):
                raise RunError(
                    f"curvature: the loss of batch {batch.number} (counted from 0) is {total}; "
                    "look at its inputs, or use float32 or float64 parameters"
                )
        return total

    def _count(self, batch: losses.Batch) -> float:
        if self._loss_of is not None:
            return 0 if batch.idle else self._loss_of(batch).valid
        return self.forward(batch, self.parameters)[1].valid


def _module_of(model: Any, params: Params | None) -> nn.Module:
    """Return the module of a model or a function; refuse names and modules of torch.jit."""
    if isinstance(model, str | os.PathLike):
        loads = f"`model, tokenizer = hb.load({os.fspath(model)!r})` loads it"
        raise ArgumentError(f"model: expected a module, got a name; {loads}")
    module = as_module(model, params)
    if isinstance(module, torch.jit.ScriptModule):
        raise ArgumentError(
            "model: compiled by torch.jit, which hides its operations; give the module itself"
        )
    return module
