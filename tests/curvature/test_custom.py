"""Groups that a user names."""

import pytest
import torch

from hessblocks.conventions import selects
from hessblocks.curvature.groups.roles import custom_groups, parameter_groups, select_groups
from hessblocks.curvature.products.operators import Hessian
from hessblocks.errors import ArgumentError
from tests.curvature.cases import CASES, gpt2_case
from tests.curvature.oracle import dense

pytestmark = pytest.mark.filterwarnings("ignore::hessblocks.curvature.AttentionBackendWarning")


def test_a_wrapped_model_has_the_groups_of_the_model_itself() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    wrapped = torch.compile(model)
    assert custom_groups(wrapped, {"all": "*"}) == custom_groups(model, {"all": "*"})
    for name, _ in wrapped.named_parameters():  # _orig_mod.0.weight
        assert custom_groups(wrapped, {"one": name}) == custom_groups(model, {"one": name[10:]})


def test_patterns_select_groups_in_their_order() -> None:
    groups = parameter_groups(CASES["sas"]().model)
    chosen = select_groups(groups, ["layers.*.attention.query", "embedding.*"])
    assert list(chosen) == [
        "embedding.token",
        "embedding.position",
        "layers.0.attention.query",
        "layers.1.attention.query",
    ]


def test_a_name_selects_its_group_alone_whatever_it_means_as_a_pattern() -> None:
    model = CASES["sas"]().model
    names = ["layers.0-3.x", "layers.1.x", "query", "one[0]", "one0", "what?", "whats"]
    parameters = [name for name, _ in model.named_parameters() if "query" in name]
    parameters += [name for name, _ in model.named_parameters() if "query" not in name]
    groups = custom_groups(model, dict(zip(names, parameters, strict=False)))
    assert sum(group.role == "query" for group in groups.values()) > 1
    for name in names:
        assert list(select_groups(groups, name)) == [name]
        assert selects(name, name)
    assert list(select_groups(groups, ["layers.1-2.x", "one[0]"])) == ["layers.1.x", "one[0]"]


def test_a_pattern_that_matches_nothing_lists_near_names() -> None:
    groups = parameter_groups(CASES["sas"]().model)
    with pytest.raises(ArgumentError, match=r"matches nothing; near: .*attention\.query"):
        select_groups(groups, ["layers.0.attention.quary"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first.weight", torch.arange(12)),
        ("first.weight[1:3]", torch.arange(3, 9)),
        ("first.weight[:, 0]", torch.tensor([0, 3, 6, 9])),
        ("first.weight[::2, -2:]", torch.tensor([1, 2, 7, 8])),
        ("*.bias[1:2]", torch.tensor([1])),
    ],
)
def test_slices_are_those_of_python(text: str, expected: torch.Tensor) -> None:
    group = custom_groups(CASES["classification"]().model, {"mine": text})["mine"]
    assert torch.equal(group.views[0].positions(), expected)


def test_the_block_of_a_named_group_is_that_of_the_dense_hessian() -> None:
    case = CASES["classification"]()
    specifications = {"mine": ["first.weight[::2]", "second.bias[1:]"]}
    group = custom_groups(case.model, specifications)["mine"]
    block = Hessian(case.problem, group).dense()
    assert torch.allclose(block, dense(case).block("full", group, group), atol=1e-12)


@pytest.mark.parametrize(
    ("specifications", "message"),
    [
        ({"a": "frist.weight"}, "matches nothing; near: first.weight"),
        ({"a": "frozen"}, "matches nothing"),
        ({"a": "first.weight[0:1, 0:1, 0:1]"}, "3 slices, 'first.weight' has 2 axes"),
        ({"a": "first.weight[9:]"}, "of 'first.weight' is empty"),
        ({"a": "first.weight[x:]"}, "not start:stop:step"),
        ({"a": "first.weight[::-1]"}, "backwards"),
        ({"a": "first.*", "b": "first.bias"}, "'b' shares entries of 'first.bias'"),
    ],
)
def test_what_does_not_fit_is_refused(specifications: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        custom_groups(CASES["classification"]().model, specifications)


@pytest.mark.parametrize(
    ("texts", "role", "layer"),
    [
        ("transformer.h.1.attn.c_attn.weight[:, :4]", "query", 1),
        ("transformer.h.*.attn.c_attn.weight[:, 4:8]", "key", None),
        ("transformer.h.0.attn.c_attn.weight[:, 2:6]", "other", 0),
        (["transformer.h.0.mlp.c_fc.*", "transformer.h.1.mlp.c_fc.bias"], "mlp_in", None),
        ("transformer.h.0.*", "other", 0),
        ("transformer.wte.weight[0]", "embedding", None),
    ],
)
def test_a_group_of_known_parameters_keeps_role_and_layer(
    texts: str | list[str], role: str, layer: int | None
) -> None:
    model = gpt2_case().model
    assert model.config.n_embd == 4
    group = custom_groups(model, {"mine": texts})["mine"]
    assert (group.role, group.layer) == (role, layer)


def test_what_is_not_a_pattern_on_names_is_refused() -> None:
    model = CASES["classification"]().model
    for given in (3, {"mine": 3}, {"mine": ["first.*", 3]}):
        with pytest.raises(ArgumentError, match=r"groups: expected (a dict|patterns).*got"):
            custom_groups(model, given)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="model: expected a module, got NoneType"):
        parameter_groups(None)  # type: ignore[arg-type]
    assert list(select_groups(parameter_groups(model), "first.*")) == ["first.weight", "first.bias"]
