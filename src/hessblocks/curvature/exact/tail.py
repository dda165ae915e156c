"""Differentiate the network after the last attention, which acts on each token separately.

The derivatives by the attention's output are the Gauss-Newton split with the logits as network
output. Let a be that output at one token, h(a) the token's final hidden state, f = W h + b its
logits and ℓ its term of the loss. Then
    g = Jᵀ r, Λ_o = Jᵀ H_ℓ J, Λ_f = Σ_c r_c ∇²f_c, with J = ∂f/∂a, r = ∂ℓ/∂f, H_ℓ = ∂²ℓ/∂f².
The logits are linear in h, so that Λ_f = Σ_d (Wᵀ r)_d ∇²h_d needs no second derivatives of logits.

The derivatives by the network's parameters are taken at sites. A *site* is a place in a token's
network where a vector δ can be added: the output of the attention, the output z = Wᵀ x of a linear
layer, or a parameter (gains and biases of norms, gains of branches). All derivatives here are by δ.
Let δ_s be added at site s, h be the final hidden state and u = ∂ℓ/∂h. Then
    M_s = ∂h/∂δ_s, F_st = ∂²(u·h)/∂δ_s∂δ_t, X_ts = ∂x_t/∂δ_s (x_t the input of the layer at t).
A change ΔW of a linear layer adds ΔWᵀ x to its output. Since x depends on δ_s, X_ts enters H_f.

Letters: N tokens (for g, Λ_o and Λ_f those with a label), Q positions of a sequence, D width, C
classes, P inputs of a linear layer, S and T sizes of two sites.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vjp, vmap
from transformers.pytorch_utils import Conv1D

from hessblocks.curvature.exact.unembedding import SeenLoss
from hessblocks.curvature.last_layer import (
    HiddenNetwork,
    LastAttention,
    check_linear,
    uncovered,
    undisturbed,
)
from hessblocks.curvature.model_state import Form, checksums, form_of
from hessblocks.errors import ArgumentError
from hessblocks.linalg import chunks
from hessblocks.theory import TokenCurvature

_AT_ONCE = 1 << 21
"""Entries of Jacobians per batch; larger batches leave the cache and are slower (GPT-2 small:
5 %)."""


@dataclass(frozen=True, kw_only=True)
class TokenDerivatives:
    """Derivatives of the loss by the attention output of each token."""

    gradient: Float[Tensor, "N D"]
    """g, the gradient of the loss."""
    outer: TokenCurvature
    """Λ_o: a factor of C rows if C < D, else (D, D) matrices."""
    functional: TokenCurvature | None
    """Λ_f, the Hessian of the network after the attention, weighted by the loss gradient; None if
    it is zero, as for ReLU without norms."""
    hidden: Float[Tensor, "N D"]
    """Output of our network, which the caller compares with the model's."""


def token_derivatives(
    network: HiddenNetwork,
    attended: Float[Tensor, "N D"],
    x: Float[Tensor, "N state"],
    loss: SeenLoss,
) -> TokenDerivatives:
    """Differentiate Σ_n ω_n · cross-entropy(logits(network(attended_n, x_n)), labels_n).

    Args:
        network: network of one token.
        attended: outputs of the attention.
        x: inputs of the layer.
        loss: loss as a function of the network's outputs; its memory limit bounds intermediate
            results, without the returned tensors.

    Returns:
        g, Λ_o and Λ_f of each token.

    Cost: min(C, D) passes of the network per token for J, and about D gradient passes for Λ_f
        unless it is zero; N C D² multiplications for the curvature by h if C ≥ D. Memory: N D²
        numbers for each of Λ_o and Λ_f.
    """
    with torch.no_grad():
        gradient, outer, hidden = _first(network, attended, x, loss)
        functional = _functional(network, attended, x, loss)
    return TokenDerivatives(gradient=gradient, outer=outer, functional=functional, hidden=hidden)


def _first(
    network: HiddenNetwork, attended: Tensor, x: Tensor, loss: SeenLoss
) -> tuple[Tensor, TokenCurvature, Tensor]:
    """Compute Λ_o from the Jacobian of the logits (C rows) or of h (D rows), whichever is smaller.

    Returns:
        g, Λ_o (as a factor if C < D) and h of each token.
    """
    few, width = loss.few_classes, attended.shape[-1]
    # W or the identity for all tokens: vmap runs linear layers at the end once, not per token
    rows = loss.weight if few else torch.eye(width).to(attended)
    slopes = loss.residual if few else loss.gradient
    outer = attended.new_empty(len(attended), len(rows), width) if few else loss.curvature()

    def jacobian_of(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        out, pull, *_ = vjp(lambda point: network(point, x), a)
        return vmap(pull)(rows)[0], out

    gradient, hidden = torch.empty_like(attended), torch.empty_like(attended)
    for chunk in chunks(len(attended), _together(attended, loss.memory_limit)):
        J, hidden[chunk] = vmap(jacobian_of)(attended[chunk], x[chunk])
        gradient[chunk] = (slopes[chunk, None] @ J)[:, 0]
        outer[chunk] = loss.root(J, chunk) if few else J.mT @ outer[chunk] @ J
    if few:
        return gradient, TokenCurvature(factor=outer), hidden
    return gradient, TokenCurvature(matrix=outer, positive_semidefinite=True), hidden


def _functional(
    network: HiddenNetwork, attended: Tensor, x: Tensor, loss: SeenLoss
) -> TokenCurvature | None:
    """Compute Λ_f of every token; None if its product with a generic vector is 0 everywhere."""
    gradient = grad(lambda a, u, x: (u * network(a, x)).sum())

    def times(direction: Tensor, a: Tensor, u: Tensor, x: Tensor) -> Any:
        return vjp(lambda point: gradient(point, u, x), a)[1](direction)[0]

    pulled, step = loss.gradient, _together(attended, loss.memory_limit)
    generic = torch.arange(1, attended.shape[-1] + 1).to(attended).sqrt().sin().expand_as(attended)
    if not vmap(times, chunk_size=step)(generic, attended, pulled, x).any():
        return None
    matrix = attended.new_empty(*attended.shape, attended.shape[-1])
    for chunk in chunks(len(attended), step):  # jacrev: forward mode is wrong for torch layer norm
        matrix[chunk] = vmap(jacrev(gradient))(attended[chunk], pulled[chunk], x[chunk])
    return TokenCurvature(matrix=matrix)


def _together(attended: Tensor, memory_limit: int) -> int:
    """Count the tokens per batch; hidden layers take most of the memory, twice as much for Λ_f."""
    square = attended.shape[-1] ** 2
    return max(1, min(memory_limit // (32 * square * attended.element_size()), _AT_ONCE // square))


ATTENTION = "attention"
"""Name of the site at the output of the attention."""
KEPT_LIMITS = 8
"""One derivative of all tokens may take this many times the memory limit."""


@dataclass(frozen=True, kw_only=True)
class TailPart:
    """Linear layer after the attention with its bias, or another parameter."""

    name: str
    """Name of the module or the parameter in the model, and of its site."""
    shape: tuple[int, int]
    """(inputs, outputs) of a layer, with a bias as one more input; (1, entries) of a parameter."""
    linear: bool = False
    """Whether it is a linear layer."""
    biased: bool = False
    """Whether the layer has a bias."""
    gain: float = 1.0
    """Factor that multiplies the trained matrix."""


class TokenTail:
    """Network of one token after the last attention, with its derivatives by all sites."""

    def __init__(
        self, model: nn.Module, last: LastAttention, positions: Int[Tensor, " Q"], memory_limit: int
    ) -> None:
        """Find the parameters; nothing is differentiated yet.

        Args:
            model: model that holds the parameters.
            last: its last attention and the network after it.
            positions: positions of the labelled tokens, the same in every sequence.
            memory_limit: bytes that intermediate results may take; a cached derivative may take
                `KEPT_LIMITS` times as many.

        Raises:
            ArgumentError: a trained parameter is used in an unsupported way.
        """
        self._tail = _Tail(model, last.network)
        self._before = last.before - last.multipliers.keys()
        self._model = model
        inputs_of_tail = (last.seen.attended, last.seen.x)
        self._points = tuple(tensor[:, positions].flatten(0, 1) for tensor in inputs_of_tail)
        self._limit = memory_limit
        self._kept: dict[tuple[str, ...], Tensor] = {}
        self.parts = {part.name: part for part in self._find_parts()}
        self._linear = {
            name: model.get_submodule(name) for name, part in self.parts.items() if part.linear
        }
        self.width = last.seen.attended.shape[-1]
        with undisturbed(model), torch.no_grad():
            hidden, inputs = vmap(lambda *point: self._run({}, *point))(*self._points)
        self._inputs: dict[str, Tensor] = inputs
        self.hidden: Float[Tensor, "N D"] = hidden
        """Final hidden state h of each token."""

    def note_state(self) -> None:
        """Record the model's state, to detect changes; call it once its settings are restored."""
        self._state = _state(self._model)

    def size(self, site: str) -> int:
        """Count the entries of δ at a site."""
        return self.width if site == ATTENTION else self.parts[site].shape[1]

    def inputs(self, name: str) -> Float[Tensor, "N P"]:
        """Return a linear layer's inputs times its gain, with a column of ones for its bias.

        For a parameter that is not a linear layer, return only the column of ones.
        """
        part = self.parts[name]
        ones = self.hidden.new_ones(len(self.hidden), 1)
        if not part.linear:
            return ones
        inputs = part.gain * self._inputs[name]
        return torch.cat([inputs, ones], dim=-1) if part.biased else inputs

    def first(self, site: str) -> Float[Tensor, "N D S"]:
        """Compute M_s, the derivative of the hidden state."""

        def of_token(*point: Tensor) -> Any:
            return jacrev(lambda added: self._run({site: added}, *point)[0])(self._zeros(site))

        return self._of_tokens(("first", site), of_token, self.width, self.size(site))

    def second(self, row: str, column: str, along: Float[Tensor, "N D"]) -> Float[Tensor, "N S T"]:
        """Compute F_st for u = `along`, which must be the same in every call: F_st is cached."""
        if (self.size(row), row) > (self.size(column), column):
            return self.second(column, row, along).mT

        def of_token(u: Tensor, *point: Tensor) -> Any:
            def value(here: Tensor, there: Tensor) -> Tensor:
                both = {row: here + there} if row == column else {row: here, column: there}
                return (u * self._run(both, *point)[0]).sum()

            slope = grad(value)
            return jacrev(lambda there: slope(self._zeros(row), there))(self._zeros(column))

        return self._of_tokens(
            ("second", row, column), of_token, self.size(row), self.size(column), along
        )

    def between(self, layer: str, site: str) -> Float[Tensor, "N P S"]:
        """Compute X_ts; it is zero for the column of ones, and if x_t does not depend on δ_s."""
        part = self.parts[layer]

        def of_token(*point: Tensor) -> Tensor:
            def read(added: Tensor) -> Tensor:
                return part.gain * self._run({site: added}, *point)[1][layer]

            slope: Tensor = jacrev(read)(self._zeros(site))
            return nn.functional.pad(slope, (0, 0, 0, int(part.biased)))

        return self._of_tokens(("between", layer, site), of_token, part.shape[0], self.size(site))

    def _zeros(self, site: str) -> Tensor:
        return self.hidden.new_zeros(self.size(site))

    def _of_tokens(
        self,
        key: tuple[str, ...],
        of_token: Callable[..., Any],
        rows: int,
        columns: int,
        *per_token: Tensor,
    ) -> Tensor:
        """Compute a derivative for all tokens, in batches of tokens, and cache it."""
        if key not in self._kept:
            tokens, size = len(self.hidden), self.hidden.element_size()
            needed, limit = tokens * rows * columns * size, KEPT_LIMITS * self._limit
            if needed > limit:
                raise ArgumentError(
                    f"model: the blocks of {' and '.join(key[1:])} need {tokens} × {rows} × "
                    f"{columns} numbers ({needed / 1e9:.1f} GB; {limit / 1e9:.1f} GB are allowed); "
                    "raise memory_limit, take fewer tokens or use hessblocks.Hessian"
                )
            if self._state != _state(self._model):  # what is cached is of another model
                raise ArgumentError(
                    "model: its weights or modules have changed since the closed form was made; "
                    "make it again"
                )
            square = max(rows, self.width) * max(columns, self.width)
            batched = vmap(of_token, chunk_size=max(1, self._limit // (16 * size * square)))
            with undisturbed(self._model), torch.no_grad():
                self._kept[key] = batched(*per_token, *self._points)
        return self._kept[key]

    def _run(
        self, added: Mapping[str, Tensor], a: Tensor, x: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a token's h and the inputs of its linear layers, with δ from `added` by site."""
        moved = {
            f"model.{name}": parameter + added[name].view_as(parameter)
            for name in added
            if name in self.parts and not self.parts[name].linear
            for parameter in [self._model.get_parameter(name).detach()]
        }
        if ATTENTION in added:
            a = a + added[ATTENTION]
        with _watched(self._linear, added) as recorded:
            hidden: Tensor = functional_call(self._tail, moved, (a, x), tie_weights=False)
        return hidden, recorded

    def _find_parts(self) -> Iterator[TailPart]:
        """Yield the trained parameters of the network after the attention, by module."""
        trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        with undisturbed(self._model), torch.enable_grad():
            hidden = self._tail(*(point[0] for point in self._points))
            if not hidden.requires_grad:
                return
            slopes = torch.autograd.grad(hidden.sum(), list(trained.values()), allow_unused=True)
        used = {name for name, slope in zip(trained, slopes, strict=True) if slope is not None}
        layers: dict[str, Any] = {}
        for name in used:
            stem, _, suffix = name.rpartition(".")
            module = self._model.get_submodule(stem)
            if suffix == "bias":  # the bias of a frozen weight is treated like a norm's bias
                continue
            if isinstance(module, nn.Linear | Conv1D):
                check_linear(stem, module)
            if isinstance(module, nn.Linear | Conv1D) or _reparametrised(module):
                layers[stem] = module
        for name in trained:
            stem, _, suffix = name.rpartition(".")
            if name not in used or name in self._before or (stem in layers and suffix == "bias"):
                continue
            if stem in layers:
                yield _linear_part(stem, layers[stem], suffix)
            elif trained[name].ndim > 1:
                raise uncovered(
                    f"does not know how {name!r} enters the network after the last attention"
                )
            else:
                yield TailPart(name=name, shape=(1, trained[name].numel()))


def _linear_part(name: str, module: Any, suffix: str) -> TailPart:
    """Describe a linear layer, for a reparametrised one its trained matrix."""
    bias = getattr(module, "bias", None)
    biased = bias is not None and bias.requires_grad
    gain = 1.0
    if _reparametrised(module):
        if suffix != "update" or isinstance(module.update_gain, nn.Parameter):
            raise uncovered(f"does not cover the trained gains of {name!r}")
        gain = float(module.update_gain)
    weight = module.get_parameter(suffix)
    inputs, outputs = weight.shape if isinstance(module, Conv1D) else weight.shape[::-1]
    return TailPart(
        name=name, shape=(inputs + int(biased), outputs), linear=True, biased=biased, gain=gain
    )


def _reparametrised(module: nn.Module) -> bool:
    """Tell whether a layer's weight is a fixed plus a trained matrix, each with a gain."""
    return hasattr(module, "effective_weight")


def _state(model: nn.Module) -> tuple[Form, tuple[float, ...]]:
    """Return form and checksums, which change if weights or modules change."""
    return form_of(model), checksums([*model.parameters(), *model.buffers()])


class _Tail(nn.Module):
    """Network after the attention, as a module whose parameters `functional_call` can replace."""

    def __init__(self, model: nn.Module, network: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._network = network

    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        return self._network(a, x)


@contextmanager
def _watched(
    modules: Mapping[str, nn.Module], added: Mapping[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Record the inputs of modules, and add the vectors `added` to their outputs."""
    recorded: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            if name in recorded:
                raise ArgumentError(
                    f"model: {name!r} is used twice after the last attention; the closed form "
                    "expects one use; use hessblocks.Hessian for this model"
                )
            # one token: all axes before the last have length 1
            recorded[name] = inputs[0].reshape(-1)
            return output + added[name] if name in added else output

        return hook

    with ExitStack() as hooks:
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(watch(name)))
        yield recorded
