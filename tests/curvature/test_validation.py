"""A group, a problem or a limit that is none is refused in a sentence that says what is meant."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hessblocks as hb
from hessblocks import errors
from hessblocks.curvature.groups import merge
from hessblocks.errors import ArgumentError, in_units
from hessblocks.linalg import default_limit

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    model = hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=11, context=8)
    wider = hb.build("pre-ln", depth=1, width=16, heads=2, vocab_size=11, context=8)
    deeper = hb.build("pre-ln", depth=2, width=8, heads=2, vocab_size=11, context=8)
    batch = {"input_ids": torch.randint(0, 11, (2, 6))}
    name = "layers.0.attention.query"
    return {
        "model": model,
        "batch": batch,
        "problem": hb.Problem(model, batch),
        "groups": hb.parameter_groups(model),
        "group": hb.parameter_groups(model)[name],
        "wider": hb.parameter_groups(wider)[name],
        "deeper": hb.parameter_groups(deeper)["layers.1.attention.query"],
    }


REFUSED: dict[str, tuple[Callable[..., object], str]] = {
    "all groups for one": (lambda a: hb.Hessian(a["problem"], a["groups"]),
        "expected one group such .*custom_groups"),
    "a list for a group": (
        lambda a: hb.Hessian(a["problem"], [*a["groups"].values()]),
        r"^group: expected a group .*, got list; hessblocks\.custom_groups\(model, .* makes one "
        r"group of several",
    ),
    "an entry twice": (
        lambda a: hb.Hessian(a["problem"], merge("both", [a["group"], a["group"]])),
        "^group: 'both' names an entry twice",
    ),
    "norms of an entry twice": (
        lambda a: hb.group_norms(a["problem"], {"q": merge("both", [a["group"], a["group"]])}),
        r"^groups\['q'\]: 'both' names an entry twice",
    ),
    "an unknown name": (lambda a: hb.Hessian(a["problem"], "quary"),
        "groups: 'quary' matches nothing"),
    "a number for a group": (lambda a: hb.Hessian(a["problem"], 1), "expected a group of param"),
    "rows": (lambda a: hb.Hessian(a["problem"], rows={}, columns=a["group"]),
        "^rows: expected one"),
    "a model for a problem": (lambda a: hb.Hessian(a["model"], a["group"]),
        "^problem: expected hess"),
    "a wider model": (lambda a: hb.Hessian(a["problem"], a["wider"]), "take the group from"),
    "a deeper model": (lambda a: hb.Hessian(a["problem"], a["deeper"]), "take the group from"),
    "map of one group": (lambda a: hb.curvature_map(a["problem"], a["group"]), "groups by name"),
    "map of none": (lambda a: hb.curvature_map(a["problem"], {}), "at least one group, got none"),
    "norms of a list": (lambda a: hb.group_norms(a["problem"], [a["group"]]), "groups by name"),
    "norms of another": (lambda a: hb.group_norms(a["problem"], {"q": a["deeper"]}),
        r"groups\['q'\]"),
    "no eigenvalue": (
        lambda a: hb.extreme_eigenvalues(hb.Hessian(a["problem"], a["group"]), count=0),
        "^count: expected at least 1 eigenvalue",
    ),
    "a callable loss": (
        lambda a: hb.exact_attention_curvature(a["model"], a["batch"], loss=lambda o, b: o),
        "loss of the closed form: .* Known: causal-lm, masked-lm",
    ),
    "a part for parts": (
        lambda a: hb.group_norms(a["problem"], {"q": a["group"]}, parts="outer"),
        "^parts: expected a list of some of outer, functional, full, got 'outer'",
    ),
    "no parts": (lambda a: hb.group_norms(a["problem"], {"q": a["group"]}, parts=[]),
        "^parts: expected"),
    "an unknown part": (
        lambda a: hb.group_norms(a["problem"], {"q": a["group"]}, parts=["outr"]),
        "^part: 'outr' is unknown; did you mean 'outer'",
    ),
    "half a probe": (
        lambda a: hb.group_norms(a["problem"], {"q": a["group"]}, probes=4.5),
        "^probes: expected a whole number of at least 4, got 4.5",
    ),
    "a tolerance that is no number": (
        lambda a: hb.extreme_eigenvalues(
            hb.Hessian(a["problem"], a["group"]), tolerance=float("nan")),
        "^tolerance: expected a share of at least 0, got nan",
    ),
    "no steps": (
        lambda a: hb.spectral_density(hb.Hessian(a["problem"], a["group"]), steps=0),
        "^spectral_density: steps: expected at least 1, got 0",
    ),
    "no batches": (lambda a: hb.Problem(a["model"], None),
        "^batches: expected a batch, a list of them"),
    "half a batch": (
        lambda a: hb.Problem(a["model"], a["batch"], num_batches=1.5),
        "^num_batches: expected at least 1, got 1.5",
    ),
    "a class of losses": (
        lambda a: hb.Problem(a["model"], a["batch"], torch.nn.CrossEntropyLoss),
        r"^loss: expected an instance, CrossEntropyLoss\(\), got the class",
    ),
    "complex labels": (
        lambda a: hb.Problem(
            torch.nn.Linear(2, 1), [(torch.randn(3, 2), torch.randn(3, 1) + 1j)], "regression"
        ).value(),
        "^labels: complex numbers",
    ),
    "complex vectors": (
        lambda a: hb.Hessian(a["problem"], a["group"]).to_scipy() @ (1j * np.ones(64)),
        "^to_scipy: complex vectors",
    ),
    "no class": (
        lambda a: hb.Problem(
            torch.nn.Linear(2, 3),
            [(torch.randn(2, 2), torch.tensor([1, -100]))],
            torch.nn.CrossEntropyLoss(ignore_index=-1),
        ).value(),
        "^labels: -100 is no class, and ignore_index is -1",
    ),
    "a loss with its outputs": (
        lambda a: hb.Problem(
            a["model"], a["batch"], partial(torch.nn.functional.cross_entropy, torch.zeros(2, 3))
        ),
        r"^loss: functools\.partial of cross_entropy takes options by name: weight",
    ),
    "a misspelt option": (
        lambda a: hb.Problem(
            a["model"], a["batch"], partial(torch.nn.functional.cross_entropy, wieght=None)
        ),
        r"^loss: functools\.partial of cross_entropy takes options by name: weight",
    ),
    "another shape": (
        lambda a: a["problem"].value(
            {**a["problem"].parameters, "model.token_embedding.weight": torch.ones(1)}
        ),
        r"^parameters: 'model\.token_embedding\.weight': expected torch\.Size\(\[11, 8\]\), got",
    ),
    "another name": (
        lambda a: a["problem"].value({**a["problem"].parameters, "bais": torch.ones(1)}),
        r"^parameters: 'bais': expected None, got",
    ),
    "a list of losses": (
        lambda a: hb.Problem(a["model"], a["batch"], ["classification"]),
        r"^loss: .* is unknown",
    ),
    "a line of tokens": (
        lambda a: hb.Problem(a["model"], {"input_ids": [1, 2, 3]}).value(),
        r"^batches: causal-lm needs token ids, .* of shape \(sequences, tokens\); got torch.int64 "
        r"with 1 axes",
    ),
    "a mask of pairs": (
        lambda a: hb.Problem(
            a["model"], {**a["batch"], "attention_mask": torch.ones(2, 1, 6, 6)}
        ).value(),
        r"^batches: an attention_mask with rows of shape \(1, 6, 6\) does not .* give labels",
    ),
    "little memory": (
        lambda a: hb.Problem(a["model"], a["batch"], memory_limit=6_000).value(),
        r"needs about \d+(\.\d+)? [kM]B, the limit is 6 kB",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_was_not_meant_is_refused(case: str, asked: dict[str, Any]) -> None:
    call, sentence = REFUSED[case]
    with pytest.raises(ArgumentError, match=sentence):
        call(asked)


def test_parameters_that_were_frozen_since_are_reported(asked: dict[str, Any]) -> None:
    model = hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=11, context=8)
    operator = hb.Hessian(hb.Problem(model, asked["batch"]), asked["group"])
    model.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    with pytest.raises(ArgumentError, match="absent, frozen or smaller there"):
        operator @ torch.ones(operator.shape[1])


def test_bytes_are_reported_in_units() -> None:
    sizes = (12, 60_000, 1_500_000, 24_000_000_000, -5_000)
    assert [in_units(size) for size in sizes] == ["12 bytes", "60 kB", "1.5 MB", "24 GB", "-5 kB"]


def test_the_closed_form_makes_no_matrix_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    plain = torch.eye
    monkeypatch.setattr(
        torch, "eye", lambda size, *a, **k: made.append(size) or plain(size, *a, **k)
    )
    model = hb.build("pre-ln", depth=1, width=8, heads=2, vocab_size=300, context=8)
    hb.exact_attention_curvature(model, {"input_ids": torch.randint(0, 300, (1, 4))})
    assert max(made, default=0) < 300


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((), None), (("max",), None), (("5000000\n",), 5_000_000), (("max", str(2**63 - 4096)), None)],
)
def test_main_memory_is_what_a_container_may_have(
    limits: tuple[str, ...],
    expected: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [tmp_path / name for name in ("second", "first")]
    for file, limit in zip(files, limits, strict=False):
        file.write_text(limit, encoding="ascii")
    monkeypatch.setattr(errors, "CONTAINER", tuple(files))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert errors.main_memory() == (expected or machine)
    default = default_limit(torch.device("cpu"))
    assert default == (expected or machine) // 4


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_has_no_part_in_an_estimate(device: str, asked: dict[str, Any]) -> None:
    op = hb.Hessian(asked["problem"], asked["group"])
    expected = hb.trace(op, probes=4).value
    with torch.device(device):
        assert hb.trace(op, probes=4).value == expected
        assert hb.extreme_eigenvalues(op).values.isfinite().all()
        assert hb.group_norms(asked["problem"], {"q": asked["group"]}, probes=4)
