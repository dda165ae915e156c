"""Bad input: an error that names the argument, what was expected and what came."""

import re
from typing import Any

import pytest
import torch

from hessblocks.errors import ArgumentError
from hessblocks.theory.arguments import attention_hessian
from hessblocks.theory.head_vectors import HeadNorm
from tests.theory.cases import Case, arguments

NAN = float("nan")


def good(**fields: Any) -> dict[str, Any]:
    return arguments(Case(name="good", batch=2, tokens=4, width=3, head=2, value=3, **fields))


def empty_row() -> torch.Tensor:
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    return mask


def damaged(name: str, **fields: Any) -> dict[str, Any]:
    tensor = good(**fields)[name].clone()
    tensor.view(-1)[-1] = NAN
    return good(**fields) | {name: tensor}


BAD = {
    "no temperature": (good() | {"temperature": 0.0}, "temperature: .*above 0, got 0.0"),
    "endless temperature": (good() | {"temperature": float("inf")}, "temperature: .*got inf"),
    "temperature as text": (good() | {"temperature": "1"}, "temperature: .*got '1'"),
    "temperature that overflows the scores": (
        good(loss="matrix") | {"temperature": 1e-320},
        "x, w_query, w_key: the scores overflow",
    ),
    "integer input": (
        good() | {"x": torch.ones(2, 4, 3, dtype=torch.long)},
        "x: .*floating.*int64",
    ),
    "half precision": (good() | {"x": torch.ones(2, 4, 3).half()}, r"x: .*float16.*x.float\(\)"),
    "scores that overflow": (
        good(loss="matrix") | {"x": torch.ones(2, 4, 3).double() * 1e200},
        r"x, w_query, w_key: the scores overflow torch.float64 .*1e\+200",
    ),
    "output that overflows": (
        good() | {"w_value": torch.ones(3, 3).double() * 1e308, "x": good()["x"] * 100},
        "x, w_value: .*output overflows",
    ),
    "factor of rank 0": (
        good(loss="factor") | {"curvature_factor": torch.ones(2, 4, 0, 3).double()},
        "curvature_factor: .*at least 1, got 0",
    ),
    "negative memory limit": (good() | {"memory_limit": -1}, "memory_limit: .*at least 1, got -1"),
    "memory limit as text": (good() | {"memory_limit": "1GB"}, "memory_limit: .*got '1GB'"),
    "flat input": (good() | {"x": torch.ones(4).double()}, r"x: .*batch, tokens, width.*\(4,\)"),
    "no tokens": (good() | {"x": torch.ones(2, 0, 3).double()}, r"x: .*\(2, 0, 3\)"),
    "list": (good() | {"w_query": [[1.0]]}, "w_query: .*list"),
    "transposed weight": (
        good() | {"w_key": torch.ones(2, 3).double()},
        r"w_key: expected 3 rows.*\(2, 3\); did you mean w_key.mT",
    ),
    "ragged head width": (
        good() | {"w_key": torch.ones(3, 5).double()},
        r"w_key: .*\(3, 2\) as w_query has, got \(3, 5\)",
    ),
    "heads that do not divide": (
        good() | {"w_value": torch.ones(2, 3, 3).double()},
        "w_value: .*1 heads",
    ),
    "mixed dtypes": (good() | {"w_value": torch.ones(3, 3)}, "w_value: .*float64.*float32"),
    "mixed devices": (
        good() | {"w_value": torch.ones(3, 3, device="meta").double()},
        "w_value: .*cpu.*meta",
    ),
    "not finite x": (damaged("x"), r"x: .*finite.*nan at \(1, 3, 2\)"),
    "not finite weight": (damaged("w_query"), "w_query: .*finite"),
    "infinite weight": (
        good() | {"w_value": torch.full((3, 3), -torch.inf).double()},
        r"w_value: .*finite.*-inf at \(0, 0\)",
    ),
    "not finite target": (damaged("target"), "target: .*finite"),
    "not finite curvature": (damaged("curvature", loss="matrix"), "curvature: .*finite"),
    "target and gradient": (
        good() | {"gradient": good()["target"]},
        "target, gradient: .*got both",
    ),
    "neither": (good() | {"target": None}, "target, gradient: .*got neither"),
    "target and curvature": (
        good() | {"curvature": torch.ones(2, 4, 3, 3).double()},
        "curvature: expected None with target=",
    ),
    "no curvature": (
        good(loss="matrix") | {"curvature": None},
        "curvature, curvature_factor: .*neither",
    ),
    "both curvatures": (
        good(loss="matrix") | {"curvature_factor": good(loss="factor")["curvature_factor"]},
        "curvature, curvature_factor: .*both",
    ),
    "target of wrong shape": (
        good() | {"target": torch.ones(2, 4, 5).double()},
        r"target: expected shape \(2, 4, 3\), got \(2, 4, 5\)",
    ),
    "factor as curvature": (
        good(loss="factor")
        | {"curvature": good(loss="factor")["curvature_factor"], "curvature_factor": None},
        r"curvature: expected shape \(2, 4, 3, 3\), got \(2, 4, 2, 3\)",
    ),
    "asymmetric curvature": (
        good(loss="matrix") | {"curvature": torch.arange(72).view(2, 4, 3, 3).double()},
        "curvature: expected a symmetric matrix.*curvature_factor=",
    ),
    "empty mask row": (good() | {"mask": empty_row()}, "mask: .*row 2 allows none"),
    "float mask": (good() | {"mask": torch.zeros(4, 4)}, r"mask: .*float32.*mask.bool\(\)"),
    "mask of wrong shape": (
        good() | {"mask": torch.ones(3, 3).bool()},
        r"mask: .*\(4, 4\).*got \(3, 3\)",
    ),
    "unknown mask": (good() | {"mask": "casual"}, "mask: .*'casual'"),
    "unknown scores": (good() | {"scores": "softmx"}, "scores: 'softmx'.*did you mean 'softmax'"),
    "unknown query_key": (good() | {"query_key": "two_matrix"}, "query_key: .*'two-matrix'"),
    "key with one matrix": (
        good() | {"query_key": "one-matrix", "w_query": torch.ones(3, 3).double()},
        "w_key: expected None",
    ),
    "no key with two": (good() | {"w_key": None}, "w_key: expected a tensor"),
    "oblong one matrix": (
        good() | {"query_key": "one-matrix", "w_key": None},
        r"w_query: .*\(3, 3\)",
    ),
    "two gains": (good() | {"gains": (1.0, 1.0)}, r"gains: .*\(alpha, beta, gamma\), got 2"),
    "one gain": (good() | {"gains": 1.0}, r"gains: .*\(alpha, beta, gamma\), got float"),
    "gains as text": (good() | {"gains": "abc"}, r"gains: .*got str"),
    "gain as text": (good() | {"gains": (1.0, "b", 1.0)}, "gains: .*beta .*'b'"),
    "integer gain": (good() | {"gains": (1.0, torch.tensor(1), 1.0)}, "gains: beta: .*floating"),
    "gain of another dtype": (
        good() | {"gains": (1.0, torch.tensor(1.0, dtype=torch.float16), 1.0)},
        "gains: beta: .*float16",
    ),
    "gains of wrong shape": (good() | {"gains": (1.0, torch.ones(2), 1.0)}, "gains: .*beta"),
    "gain not finite": (good() | {"gains": (1.0, NAN, 1.0)}, "gains: .*finite"),
    "identity values that do not divide": (
        good() | {"w_value": None, "w_query": torch.ones(2, 3, 2).double()},
        "w_value: .*divisible.*width 3 and 2 heads",
    ),
    "flat projection": (
        good(heads=2) | {"w_projection": torch.ones(3, 4).double()},
        r"w_projection: .*view\(heads",
    ),
}


@pytest.mark.bad_input
def test_the_message_names_the_argument() -> None:
    unlike = {}
    for name, (made, message) in BAD.items():
        try:
            attention_hessian(**made)
            unlike[name] = "not refused"
        except ArgumentError as error:
            if not re.search(message, str(error)):
                unlike[name] = str(error)
    assert unlike == {}


def test_unknown_groups_parts_and_heads() -> None:
    hessian = attention_hessian(**good())
    with pytest.raises(ArgumentError, match=r"group: 'qury' is unknown; did you mean 'query'"):
        hessian.block("qury", "key")
    with pytest.raises(ArgumentError, match="part: 'outr' is unknown; did you mean 'outer'"):
        hessian.block("query", "key", "outr")
    with pytest.raises(ArgumentError, match="head: expected 0 to 0, got 1"):
        hessian.block("query", "key", head=1)
    for wrong in ((0,), (0, 0, 0), "0", True):
        with pytest.raises(ArgumentError, match=r"head: expected a number, a pair"):
            hessian.block("query", "key", head=wrong)  # type: ignore[arg-type]


ANGLES = torch.zeros(4, 2, dtype=torch.float64)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("rotary", "words"),
    [
        ((ANGLES.cos(), ANGLES.sin()[:3]), "even number up to 2 turned"),
        ((ANGLES.cos()[:, :1], ANGLES.sin()[:, :1]), "even number up to 2 turned"),
        ((ANGLES.cos().repeat(1, 2), ANGLES.sin().repeat(1, 2)), "even number up to 2 turned"),
        ((ANGLES.cos() * NAN, ANGLES.sin()), "rotary: cosines: expected finite"),
        ((ANGLES.cos().float(), ANGLES.sin()), "rotary: cosines: expected torch.float64"),
        ({"cosines": ANGLES}, "expected (cosines, sines)"),
    ],
)
def test_rotary_positions_that_do_not_fit(rotary: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        attention_hessian(**good() | {"rotary": rotary})
    assert words in str(caught.value)


def test_rotary_positions_and_one_matrix() -> None:
    rotary = (ANGLES.cos(), ANGLES.sin())
    one = good(query_key="one-matrix") | {"rotary": rotary}
    with pytest.raises(ArgumentError, match="expected None with one matrix"):
        attention_hessian(**one)


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        ("rms", "query_norm: expected a HeadNorm, such as HeadNorm.rms"),
        (
            HeadNorm.rms(torch.ones(3).double()),
            "query_norm: it does not work on vectors of 2 entries with 3 parameters",
        ),
        (HeadNorm.rms(torch.ones(2)), "query_norm: parameters: expected torch.float64"),
        (
            HeadNorm(function=lambda v, _: v[:1], parameters=torch.ones(1).double()),
            "query_norm: it does not work on vectors of 2 entries",
        ),
        (
            HeadNorm(function=lambda v, w: w @ v, parameters=torch.eye(2).double()),
            r"query_norm: its parameters: expected one vector, got \(2, 2\)",
        ),
        (
            HeadNorm(
                function=lambda v, w: v.float() * w.float(), parameters=torch.ones(2).double()
            ),
            "query_norm: it gives torch.float32, expected torch.float64",
        ),
        (
            HeadNorm(
                function=lambda v, w: v if v.sum() > 0 else w, parameters=torch.ones(2).double()
            ),
            "query_norm: it does not work on vectors",
        ),
        (
            HeadNorm(function=lambda v, w: v[5] * w, parameters=torch.ones(2).double()),
            "query_norm: it does not work on vectors of 2 entries .*IndexError",
        ),
    ],
)
def test_norms_that_do_not_fit(norm: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        attention_hessian(**good() | {"query_norm": norm})


def test_norms_and_one_matrix() -> None:
    norm = HeadNorm.rms(torch.ones(2).double())
    with pytest.raises(ArgumentError, match="key_norm: expected None with one matrix"):
        attention_hessian(**good(query_key="one-matrix") | {"key_norm": norm})


def test_the_norm_over_root_mean_squares_is_torchs() -> None:
    gain, vectors = torch.randn(3).double(), torch.randn(2, 5, 3).double()
    expected = torch.nn.functional.rms_norm(vectors, (3,), gain, eps=1e-3)
    torch.testing.assert_close(HeadNorm.rms(gain, eps=1e-3).output(vectors), expected)
    with pytest.raises(ArgumentError, match="eps: expected a number above 0, got 0"):
        HeadNorm.rms(gain, eps=0)


def test_scores_of_normed_queries_and_keys_do_not_overflow() -> None:
    huge = good(loss="matrix") | {"x": good()["x"] * 1e160}
    with pytest.raises(ArgumentError, match="the scores overflow"):
        attention_hessian(**huge)
    norms = dict.fromkeys(("query_norm", "key_norm"), HeadNorm.rms(torch.ones(2).double()))
    assert attention_hessian(**huge | norms).layer.attention(0).isfinite().all()
