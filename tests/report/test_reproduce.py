"""The printed command is one that the command line understands."""

import shlex
from dataclasses import is_dataclass
from typing import Any

import pytest

from hessblocks.cli.app import app
from hessblocks.report.page import command_line
from hessblocks.storage.folder_results import load_results
from tests.report.folders import Folder


def words(tmp_path, command: str, **config) -> list[str]:
    made = Folder(presets=("pre-ln", "sas"), seeds=(2, 3))
    made.config |= {"command": command, "device": "cpu"} | config
    return shlex.split(command_line(load_results(made.write(tmp_path)).settings))


def understood(name: str, rest: list[str]) -> dict[str, Any]:
    """What the command line makes of the words, the fields of settings among it."""
    bound = app.parse_args([name, *rest])[1]
    bound.apply_defaults()
    given = bound.arguments
    return given | {
        k: v for one in given.values() if is_dataclass(one) for k, v in vars(one).items()
    }


@pytest.mark.parametrize("command", ["demo", "compare", "train"])
def test_the_command_and_all_its_options_exist(tmp_path, command) -> None:
    own = (
        {"preset": "sas", "seed": 2, "presets": ["sas"], "seeds": [2]} if command == "train" else {}
    )
    program, name, *rest = words(tmp_path, command, **own)
    given = understood(name, rest)
    assert (program, given["seed"], given["device"]) == ("hessblocks", 2, "cpu")


def test_a_comparison_keeps_its_settings(tmp_path) -> None:
    _, name, *rest = words(tmp_path, "compare")
    values = understood(name, rest)
    assert (values["presets"], values["seeds"], values["seed"]) == (("pre-ln", "sas"), 2, 2)
    assert (values["depth"], values["width"], values["steps"]) == (2, 64, 200)
    assert (values["learning_rate"], values["observation"].sample.probes) == (1e-3, 16)
    assert values["data"] is None


def test_the_blocks_keep_their_slots(tmp_path) -> None:
    slots = ["attention.query.init=zeros", "mlp.activation=gelu"]
    sizes = {"depth": 2, "width": 64, "position": "rotary", "slots": slots, "embedding_std": 0.1}
    _, name, *rest = words(tmp_path, "compare", model=sizes)
    values = understood(name, rest)
    assert (values["position"], values["slots"]) == ("rotary", tuple(slots))
    assert values["embedding_std"] == 0.1


def test_the_users_own_data_is_a_place_to_fill_in(tmp_path) -> None:
    made = words(tmp_path, "compare", data={"name": "my notes", "fingerprint": "0"})
    assert made[made.index("--data") + 1] == "PATH"


def test_names_are_quoted_for_the_shell(tmp_path) -> None:
    made = Folder(presets=("$(reboot)",))
    text = command_line(load_results(made.write(tmp_path)).settings)
    assert "'$(reboot)'" in text


def test_what_was_chosen_beside_the_defaults_is_named(tmp_path) -> None:
    training = {"steps": 9, "optimiser": "sgd", "momentum": 0.9, "bf16": True, "accumulate": 2}
    observation = {"gains_every": 0, "signal_every": 5, "curvature_every": 3}
    observation |= {"curvature_groups": ["query", "*.mlp.*"], "sample": {"probes": 4}}
    config = {"training": training, "observation": observation, "match": "flops"}
    _, name, *rest = words(tmp_path, "compare", **config)
    values = understood(name, rest)
    assert (values["optimiser"], values["bf16"], values["accumulate"]) == ("sgd", True, 2)
    assert (values["match"], values["signal_every"], values["curvature_every"]) == ("flops", 5, 3)
    assert values["curvature_groups"] == ("query", "*.mlp.*")
    assert not {"--momentum", "--gains-every", "--schedule"} & set(rest)


def test_a_sample_that_was_chosen_is_named_though_nothing_was_measured_on_it(tmp_path) -> None:
    config = {"preset": "sas", "curvature": None, "observation": {"sample": {"probes": 4}}}
    made = words(tmp_path, "train", **config)
    assert made[made.index("--curvature-probes") + 1] == "4"
