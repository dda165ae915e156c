"""The command that makes the same folder again, from config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hessblocks.shown import shell_line
from hessblocks.storage import Settings

OWN_DATA = "PATH"
"""Stands for the user's data, whose place config.json does not keep."""
STANDARD_DATA = "python-code"
SIZES = ("vocab_size", "depth", "width", "heads", "mlp_width", "context", "position")
TRAINING = ("steps", "batch_size", "learning_rate", "evaluate_every", "checkpoint_every")
CHOSEN = {
    "optimiser": "adamw",
    "momentum": 0.9,
    "schedule": "linear",
    "bf16": False,
    "accumulate": 1,
    "match": "steps",
    "embedding_std": 0.02,
}
"""Options that are named where they are not these."""
OBSERVED = ("gains_every", "signal_every", "curvature_every")
CURVATURE = ("sequences", "tokens", "probes")


def command_line(settings: Settings) -> str:
    """The command with every option that its settings correspond to, quoted for a POSIX shell."""
    names = list(settings.presets if settings.command == "train" else ())
    options = [*_options(settings), "--out", "DIR"]
    if any(
        name.startswith("-") for name in names
    ):  # somebody else's config.json; no options of ours
        return shell_line(["hessblocks", settings.command, *options, "--", *names])
    return shell_line(["hessblocks", settings.command, *names, *options])


def _options(settings: Settings) -> Iterator[str]:
    if settings.command not in ("train", "demo"):
        yield from ("--presets", ",".join(settings.presets), "--seeds", str(len(settings.seeds)))
    if settings.command != "demo":
        yield from _sizes(settings)
    if settings.seeds:
        yield from ("--seed", str(min(settings.seeds)))
    if "device" in settings.values:
        yield from ("--device", str(settings.values["device"]))


def _sizes(settings: Settings) -> Iterator[str]:
    if settings.section("data").get("name", STANDARD_DATA) != STANDARD_DATA:
        yield from ("--data", OWN_DATA)
    yield from _section(settings.section("model"), SIZES)
    for one in settings.section("model").get("slots") or ():
        yield from ("--set", str(one))
    yield from _section(settings.section("training"), TRAINING)
    values = {
        **settings.section("training"),
        "match": settings.values.get("match"),
        "embedding_std": settings.section("model").get("embedding_std"),
    }
    yield from _section(values, tuple(name for name in CHOSEN if values.get(name) != CHOSEN[name]))
    observation = settings.section("observation")
    observed = {name: observation[name] for name in OBSERVED if observation.get(name)}
    yield from _section(observed, OBSERVED)
    if "curvature_every" in observed:
        yield from _section(observation, ("curvature_groups",))
    sample = settings.section("curvature") or (observation.get("sample", {}) if observed else {})
    yield from _section(sample, CURVATURE, "curvature-")


def _section(
    values: Mapping[str, object], names: tuple[str, ...], prefix: str = ""
) -> Iterator[str]:
    for name in names:
        value = values.get(name)
        if value is not None and value is not False:
            yield f"--{prefix}{name.replace('_', '-')}"
        if isinstance(value, list):
            yield ",".join(map(str, value))
        elif value is not None and not isinstance(value, bool):
            yield str(value)
