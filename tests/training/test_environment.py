"""What torchrun and accelerate leave in the environment: a part of it is one sentence."""

import pytest

from hessblocks.errors import ArgumentError
from hessblocks.training import ranks

WHOLE = {
    "WORLD_SIZE": "2",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "here",
    "MASTER_PORT": "1",
}


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*WHOLE, "ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP"):
        monkeypatch.delenv(name, raising=False)


def asked_for(monkeypatch: pytest.MonkeyPatch, **environment: str) -> int:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return ranks.asked_for()


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        (WHOLE, 2),
        (WHOLE | {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, 1),
        ({"WORLD_SIZE": "1"}, 1),
        ({"WORLD_SIZE": ""}, 1),
        ({"LOCAL_RANK": "-1"}, 1),
        ({"ACCELERATE_USE_FSDP": "false"}, 1),
        ({"ACCELERATE_USE_DEEPSPEED": "0"}, 1),
        ({"ACCELERATE_USE_CPU": "true"}, 1),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, 1),
    ],
)
def test_what_means_something_is_taken(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], count: int
) -> None:
    assert asked_for(monkeypatch, **environment) == count


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"WORLD_SIZE": "4"},
            "WORLD_SIZE=4 in the environment, without RANK, LOCAL_RANK, MASTER_ADDR",
        ),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0 in the environment, without WORLD_SIZE"),
        ({"LOCAL_RANK": "3", "RANK": "3"}, "RANK=3 and LOCAL_RANK=3 in the environment, without"),
        (
            WHOLE | {"MASTER_PORT": ""},
            "without MASTER_PORT: unset what is there, or start the command",
        ),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' in the environment is no whole number"),
        (WHOLE | {"RANK": "1.5"}, "RANK='1.5' in the environment is no whole number"),
        (
            {"ACCELERATE_USE_FSDP": "true"},
            "ACCELERATE_USE_FSDP=true in the environment changes how",
        ),
        ({"ACCELERATE_USE_DEEPSPEED": "1"}, "ACCELERATE_USE_DEEPSPEED=1 in the environment"),
        ({"ACCELERATE_USE_MEGATRON_LM": "yes"}, "ACCELERATE_USE_MEGATRON_LM=yes"),
    ],
)
def test_a_part_of_it_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        asked_for(monkeypatch, **environment)


def test_a_device_that_was_not_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    ranks.join("cpu")
    with pytest.raises(ArgumentError, match="ACCELERATE_USE_CPU=True in the environment"):
        ranks.join("cuda")
