"""Read the config.json of a run, and say how two of them differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessblocks.errors import ArgumentError
from hessblocks.storage.files import damaged, read_object, stays_inside


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a command, read from its folder."""

    command: str
    """The command that made the folder, such as `demo`."""
    presets: tuple[str, ...]
    """The blocks that were asked for, in their order."""
    seeds: tuple[int, ...]
    """The random seeds that were asked for."""
    values: Mapping[str, Any]
    """The whole file."""

    def section(self, name: str) -> Mapping[str, Any]:
        """Read one section (`model`, `data`, `training`, `curvature`); empty if absent."""
        section = self.values.get(name)
        return section if isinstance(section, dict) else {}


def read_settings(path: Path) -> Settings:
    """Read the settings of one run or of a comparison.

    Returns:
        Command, presets and seeds, and the whole file beside them.

    Raises:
        ArgumentError: it is of what has no blocks side by side: a saved model, or signal alone.
        RunError: the file is damaged, or names a block by what is a path.
    """
    values = read_object(path)
    presets = values.get("presets", [values["preset"]] if "preset" in values else [])
    seeds = values.get("seeds", [values["seed"]] if "seed" in values else [])
    if values.get("command") == "signal":
        raise ArgumentError(
            f"DIR: {path.parent} is of `hessblocks signal`, which has no page; its figures lie in "
            "figures/, and the same command makes them anew."
        )
    if "model_type" in values:
        raise ArgumentError(
            f"DIR: {path.parent} is a saved model, which has no page; give the folder of its run."
        )
    if not presets:
        raise damaged(
            path, None, "expected `preset` or `presets`, as a run or a comparison writes them"
        )
    if not isinstance(presets, list) or not isinstance(seeds, list):
        raise damaged(path, None, "expected lists under `presets` and `seeds`")
    for preset in presets:
        if not stays_inside(preset):
            raise damaged(path, None, f"`presets`: expected names of blocks, got {preset!r:.100}")
    try:
        return Settings(
            command=str(values.get("command", "")),
            presets=tuple(presets),
            seeds=tuple(map(int, seeds)),
            values=values,
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged(path, None, f"`seeds`: expected whole numbers, got {seeds!r}") from error


def run_path(folder: Path, preset: str, seed: int) -> Path:
    """Make the path under which a comparison keeps a run.

    Args:
        folder: folder of the comparison.
        preset: as it was asked for; `read_settings` lets no path pass as the name of one.
        seed: seed of the run.

    Returns:
        A folder below `folder`.
    """
    return folder / "runs" / f"{preset}-seed{seed}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List each setting that differs, as "training.steps is 300, was 200"."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += differences(before, now, f"{prefix}{name}.")
        elif before != now:
            found.append(f"{prefix}{name} is {now!r}, was {before!r}")
    return found
