"""Settings of commands on a saved model: curvature, signal, price, quantise, simplify."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hessblocks.conventions import PARTS, AnyPath, Part
from hessblocks.errors import ArgumentError, check_name, choice_of
from hessblocks.settings.field_marks import OneOf, Range, Seed, above_0, at_least, check_ranges
from hessblocks.settings.run_settings import STARTS, BlockSizes, Checked


@dataclass(frozen=True, kw_only=True)
class InspectionSettings(BlockSizes):
    """Held-out tokens to measure a model on.

    Sizes and vocabulary are only for presets.
    """

    start: Annotated[str, OneOf(STARTS)] = "scaled"
    """Initialisation of a preset: scaled by the widths, or fixed (standard deviation 0.02)."""
    vocab_size: int = 4096
    """Size of the vocabulary learnt from the data."""
    data: str = "python-code"
    """Held-out text: python-code (the standard library), a file or folder, or random (tokens)."""
    sequences: Annotated[int, at_least(1)] = 8
    """Number of held-out sequences."""
    tokens: Annotated[int, at_least(2)] = 32
    """Tokens per sequence, 2 or more."""
    bare: bool = False
    """Leave out what the tokenizer puts first in each window, such as <bos>."""
    seed: Seed = 0
    """Random seed of a preset's weights and of the windows."""


@dataclass(frozen=True, kw_only=True)
class CurvatureInspection(InspectionSettings):
    """Curvature to measure."""

    seed: Seed = 0
    """Random seed of a preset's weights, of the windows and of the probes."""
    groups: tuple[str, ...] = ("*",)
    """Roles such as query, or names as tables print them, with * and ?; with commas."""
    level: Annotated[str, OneOf(("role", "head", "expert", "tensor"))] = "role"
    """Granularity of the parameter groups: role, head, expert or tensor."""
    parts: tuple[Part, ...] = PARTS
    """Parts of the Hessian, with commas: outer (Gauss-Newton), functional, full."""
    probes: Annotated[int, at_least(4)] = 16
    """Random vectors per group, 4 or more; --method sampled takes four times as many gradients."""
    method: Annotated[str, OneOf(("auto", "probes", "sampled"))] = "auto"
    """Estimate norms and map by probes, sampled gradients (--parts outer), or the cheaper."""
    eigenvalues: Annotated[int | None, at_least(0)] = None
    """Number of largest eigenvalues of H, all groups together; by default 3."""
    spectrum: bool = False
    """Measure the spectral density, all groups together."""
    each_group: bool = False
    """Measure eigenvalues and spectrum of each group's diagonal block instead."""
    map: bool = False
    """Measure the norms of the blocks of all pairs of groups."""
    loss: Annotated[str, OneOf(("causal-lm", "masked-lm", "classification"))] = "causal-lm"
    """Loss: causal-lm, masked-lm (of 15 % of the tokens), or classification (only in Python)."""
    memory_limit: Annotated[float | None, above_0("gigabytes (GB)")] = None
    """Gigabytes besides model and data; by default 40 % of the free memory; less is slower."""

    def __post_init__(self) -> None:
        """Check ranges and parts, and sort the parts."""
        super().__post_init__()
        for part in self.parts:
            check_name("--parts", part, PARTS)
        if not self.parts:
            raise ArgumentError(f"--parts: expected one or more of {', '.join(PARTS)}, got none.")
        if self.method == "sampled" and self.parts != ("outer",):
            raise ArgumentError(
                "--method: sampled measures the outer part alone; add --parts outer."
            )
        if not self.groups:
            raise ArgumentError("--groups: expected patterns with commas, got none.")
        object.__setattr__(self, "parts", tuple(part for part in PARTS if part in self.parts))

    @property
    def chooses(self) -> bool:
        """True if no quantity is set, so that the size of the model decides."""
        names = ("parts", "map", "probes", "method")
        return all(getattr(self, name) == getattr(CurvatureInspection, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class SignalInspection(InspectionSettings):
    """Signal propagation to measure."""

    depth: Annotated[int, at_least(1)] = 16
    sequences: Annotated[int, at_least(1)] = 4
    jacobian_steps: Annotated[int, at_least(0)] = 8
    """Products with each layer's Jacobian, for its condition number; 0: none."""


BLOCK = 32
"""Tokens that share a scale per channel of a cache."""
NOT_NEGATIVE = Range(lambda value: value >= 0, "0 or more")


@dataclass(frozen=True, kw_only=True)
class PricingSettings:
    """Changes of the weight matrices, and the text for their forecasts."""

    round: tuple[int, ...] = ()
    """Bits to round the matrices to, from 2 to 8, with commas, such as 2,3,4,8."""
    prune: tuple[float, ...] = ()
    """Shares of the smallest entries to set to 0, with commas, such as 0.1,0.3."""
    formats: tuple[str, ...] = ()
    """Storage formats to round weights to, with commas, such as gguf:Q4_K,mlx:4,fp8-e4m3."""
    cache: tuple[int, ...] = ()
    """Bits to round cached keys and values to, from 2 to 8, with commas, such as 2,3,4; apart from
    weights."""
    activations: tuple[int, ...] = ()
    """Bits to round the inputs of linear modules to, such as 4,8; apart from weights."""
    merge: str | None = None
    """Model of the same shape to average with, at equal weights: a folder or a GGUF file."""
    against: str | None = None
    """Quantised copy of the model, in a form that transformers opens: its own rounding, as of GPTQ
    or AWQ, is priced as it is."""
    allocate: Annotated[float | None, above_0("bits per entry")] = None
    """Mean bits per entry to distribute among the matrices; needs --round or --formats."""
    check: Annotated[int, NOT_NEGATIVE] = 20
    """Single changes to measure on other text, besides all changes together; 0: no check."""
    samples: Annotated[int, at_least(2)] = 32
    """Number of sampled gradients, each on a different piece of the text."""
    sequences: Annotated[int, at_least(2)] = 32
    """Windows of text for the forecasts, and the same number for the check; of activations 12 at
    most."""
    tokens: Annotated[int, at_least(2)] = 96
    """Tokens per window, 2 or more."""
    bare: bool = False
    """Leave out what the tokenizer puts first in each window, such as <bos>."""
    seed: Seed = 0
    """Random seed of the windows and of the samples."""

    def __post_init__(self) -> None:
        """Convert bits, shares and names of formats; check that --allocate fits --round."""
        names = tuple(choice_of("--formats", name, FORMATS) for name in self.formats)
        object.__setattr__(self, "formats", names)
        _set_numbers(self, "prune", float, 1e-9, 1 - 1e-9)
        for name in ("round", "cache", "activations"):
            _set_numbers(self, name, int, 2, 8)
        bits = self.round
        weights = bits or self.prune or self.formats or self.merge or self.against
        if (self.cache or self.activations) and weights:
            raise ArgumentError(
                "--cache: activations and weights are priced apart, since their gradients differ; "
                "leave --round, --formats, --prune, --merge and --against out."
            )
        check_ranges(self)
        if self.cache and self.tokens < BLOCK:
            raise ArgumentError(
                f"--tokens: --cache prices scales per channel too, which {BLOCK} tokens share; "
                f"give --tokens {BLOCK} or more."
            )
        if self.allocate is None or self.formats:
            return
        if not bits:
            raise ArgumentError(
                "--allocate: needs --round, the bits to choose from; for example --round 2,3,4."
            )
        if not min(bits) <= self.allocate <= max(bits):
            side = "below" if self.allocate < min(bits) else "above"
            new = sorted({*bits, int(self.allocate), -int(-self.allocate // 1)} - {0, 1})
            raise ArgumentError(
                f"--allocate: {self.allocate:g} bits are {side} all of --round; add more, such as "
                f"--round {','.join(map(str, new))}."
            )

    def check_chosen(self) -> None:
        """Refuse settings with nothing to price, or with a quantised copy beside other changes.

        Raises:
            ArgumentError: no change is given, or --against with others.
        """
        several = self.round or self.prune or self.formats or self.merge
        if not (several or self.against or self.cache or self.activations):
            raise ArgumentError(
                "--round: there is nothing to price; give bits such as 3,4, or --formats, --prune, "
                "--merge, --against, --cache or --activations."
            )
        if several and self.against:
            raise ArgumentError(
                "--against: a quantised copy is priced alone; leave the others out."
            )


def _set_numbers(settings: Any, name: str, kind: Any, least: float, largest: float) -> None:
    """Convert the entries of --round, --prune, --cache or --activations to numbers in a range."""
    numbers = []
    for word in getattr(settings, name):
        with suppress(ValueError):
            if least <= (number := kind(word)) <= largest:
                numbers.append(number)
                continue
        expected = "bits from 2 to 8" if kind is int else "shares between 0 and 1"
        raise ArgumentError(f"--{name}: expected {expected}, got {word!r}.")
    object.__setattr__(settings, name, tuple(numbers))


FORMATS = (
    *(f"gguf:{kind}" for kind in ("Q2_K", "Q3_K", "IQ4_XS", "MXFP4", "Q4_0", "IQ4_NL", "Q4_K")),
    *(f"gguf:{kind}" for kind in ("Q4_1", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0")),
    *(f"mlx:{bits}" for bits in (2, 3, 4, 5, 6, 8)),
    *(f"compressed-tensors:{bits}" for bits in range(2, 9)),
    *(f"torchao:{bits}" for bits in (2, 3, 4, 8)),
    *("bf16", "fp8-e4m3", "nf4", "mxfp4", "nvfp4"),
)
"""Storage formats, those of a runtime by size; `hessblocks.formats` has them, whose import loads
torch."""
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
SIZES = {
    "gguf": (
        *("Q2_K_S", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "IQ4_XS", "Q4_0", "IQ4_NL", "Q4_1"),
        *("Q4_K_S", "Q4_K_M", "Q5_0", "Q5_1", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0"),
    ),
    "compressed-tensors": (*(name for name in FORMATS if "compressed" in name), "bf16"),
    "torchao": ("torchao:8", "bf16"),  # it stores 2 to 4 bits in 8
}
"""Target of `quantise` → what `size_of` may name; llama.cpp's are `tensor_formats.MIXES`, whose
import loads torch."""
BUDGETS = ("size_of", "bytes", "bits", "nats")
"""Settings of `quantise` for the size of its file."""
WRITTEN = "written.json"
"""Note in a run folder of the file that it wrote: `QuantisingSettings.written`."""


@dataclass(frozen=True, kw_only=True)
class QuantisingSettings:
    """Size of the file, what reads it, and the text for the forecasts."""

    to: Annotated[str, OneOf(tuple(SIZES))] = "gguf"
    """What reads the file: gguf (llama.cpp), or a folder of compressed-tensors or torchao."""
    size_of: str | None = None
    """Standard mix whose size the file gets, such as IQ4_NL or Q4_K_M; of a folder, a uniform
    format such as compressed-tensors:4."""
    bytes: str | None = None
    """Largest size of the file, such as 90M."""
    bits: Annotated[float | None, above_0("bits per weight")] = None
    """The same in bits of the file for each weight."""
    nats: Annotated[float | None, above_0("nats per token")] = None
    """Largest forecast of the KL, in nats per token; the file is as small as it allows."""
    original: str | None = None
    """Model that MODEL was made from, as by `hessblocks simplify`: the KL from it is measured too.
    """
    check: Annotated[int, at_least(2)] = 12
    """Other windows of the text, to measure the file and its neighbours on."""
    samples: Annotated[int, at_least(2)] = 32
    """Number of sampled gradients, each on a different piece of the text."""
    sequences: Annotated[int, at_least(2)] = 32
    """Windows of text for the forecasts."""
    tokens: Annotated[int, at_least(2)] = 96
    """Tokens per window, 2 or more."""
    bare: bool = False
    """Leave out what the tokenizer puts first in each window, such as <bos>."""
    seed: Seed = 0
    """Random seed of the windows and of the samples."""

    def __post_init__(self) -> None:
        """Check the ranges, and the words of `size_of` and `bytes`."""
        check_ranges(self)
        if self.size_of is not None:
            name = choice_of("--size-of", self.size_of, SIZES[self.to])
            object.__setattr__(self, "size_of", name)
        if self.bytes is not None and not self.budget() > 0:
            raise ArgumentError(f"--bytes: expected a size such as 90M, got {self.bytes!r}.")

    @property
    def asked(self) -> str:
        """Name of the size that is given.

        Raises:
            ArgumentError: none or several are given.
        """
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) != 1:
            number = "only one" if budgets else "one"
            raise ArgumentError(f"--size-of: give {number} of --size-of, --bytes, --bits, --nats.")
        return budgets[0]

    @property
    def label(self) -> str:
        """Size as part of a file name, such as IQ4_NL, 90M, 5.3-bits or 0.05-nats."""
        value, unit = getattr(self, self.asked), self.asked
        return f"{value:g}-{unit}" if unit in ("bits", "nats") else value.replace(":", "-")

    def check_file(self, file: Path, out: AnyPath | None) -> None:
        """Refuse a file of another form than `to`, or that exists, except that of an equal call.

        Args:
            file: file to write.
            out: run folder that may hold the note of an equal call; None: any by default.

        Raises:
            ArgumentError: the name does not fit, another call wrote the file, or see `asked`.
        """
        if self.asked and (file.suffix == ".gguf") != (self.to == "gguf"):
            expected = "a name that ends in .gguf" if self.to == "gguf" else "a folder"
            raise ArgumentError(f"FILE: --to {self.to} writes {expected}, got {file}.")
        runs = [Path(out)] if out else Path("runs").glob(f"quantise-*-{self.label}")
        if file.exists() and not any(self._wrote(folder, file) for folder in runs):
            raise ArgumentError(f"FILE: {file} exists already; remove it, or give another name.")

    def _wrote(self, folder: Path, file: Path) -> bool:
        with suppress(OSError, ValueError):
            note = json.loads((folder / WRITTEN).read_text(encoding="utf-8"))
            return bool(note == self.written(file))
        return False

    def written(self, file: Path) -> dict[str, Any]:
        """Describe a file and its size as asked; an OSError says that it is missing."""
        path = file / "model.safetensors" if file.is_dir() else file
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        budgets = {name: getattr(self, name) for name in BUDGETS}
        return {**budgets, "file": str(file.resolve()), "digest": digest}

    def budget(self) -> float:
        """Return the number of bytes of `bytes`; 0 if it is no size."""
        word = self.bytes or ""
        with suppress(ValueError):
            return float(word.rstrip("kMG")) * UNITS.get(word[-1:], 1.0)
        return 0.0


REMOVALS = ("layer", "attention", "linear map", "heads", "mlp units")
"""Kinds of removal; names of `simplify.table.KINDS`, whose import loads torch."""
SHARE = Range(lambda value: 0 <= value < 1, "a share from 0, below 1")


@dataclass(frozen=True, kw_only=True)
class SimplifySettings(Checked):
    """Removals, the text to measure them on, and healing."""

    save: Annotated[float, SHARE] = 0.15
    """Share of the parameters to remove; 0: only measure the table of removals."""
    even: bool = False
    """Remove equally many MLP units from every layer, so that the result stays a model of its
    family; no removal is priced."""
    kinds: Annotated[tuple[str, ...], OneOf(REMOVALS)] = ()
    """Kinds of removal, with commas, such as 'layer,mlp units'; by default all."""
    sequences: Annotated[int, at_least(4)] = 8
    """Windows to measure removals on."""
    fitted: Annotated[int, at_least(2)] = 96
    """Windows to refit weights on."""
    tokens: Annotated[int, at_least(2)] = 64
    """Tokens per window, 2 or more."""
    also: str | None = None
    """Another file or folder of text, by which nothing is chosen, to test the result on too."""
    bare: bool = False
    """Leave out what the tokenizer puts first in each window, such as <bos>."""
    steps: Annotated[int, at_least(0)] = 100
    """Optimiser updates of the healing; 0: no healing."""
    towards: Annotated[str, OneOf(("logits", "text"))] = "logits"
    """Targets of the healing: logits of the original model, or the text."""
    learning_rate: Annotated[float, above_0("a rate")] = 1e-4
    """Peak learning rate of the healing (AdamW)."""
    batch: Annotated[int, at_least(1)] = 8
    """Windows per update of the healing."""
    to: Annotated[str, OneOf(("folder", "gguf"))] = "folder"
    """Form of the result: a folder, or beside it a GGUF file for llama.cpp (Llama alone)."""
    seed: Seed = 0
    """Random seed of the windows and batches."""
