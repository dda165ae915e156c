"""Record the requested studies of a folder; regenerate its files without measurements."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hessblocks import storage
from hessblocks.cli import FolderKind
from hessblocks.conventions import AnyPath
from hessblocks.errors import ArgumentError, RunError
from hessblocks_studies import engine
from hessblocks_studies.catalogue import find, names

CONFIG = "config.json"


def remember(out: Path, studies: Iterable[str], scale: str, seeds: int | None) -> None:
    """Add `studies` to the requests in `out`/config.json.

    Raises:
        ArgumentError: the folder belongs to another command or to one study.
        RunError: the file cannot be written.
    """
    before = _asked_before(out)
    now = {name: {"scale": scale, "seeds": seeds} for name in studies}
    storage.write_json(out / CONFIG, {"command": "reproduce", "studies": {**before, **now}})


def _asked_before(out: Path) -> dict[str, Any]:
    """Read the studies in config.json; none if it is damaged, since each study has another one."""
    try:
        config = _config(out) if (out / CONFIG).exists() else {"studies": {}}
    except RunError:
        warnings.warn(
            f"{out / CONFIG} is damaged and written anew; studies without points are forgotten",
            stacklevel=4,
        )
        return {}
    if "study" in config:
        raise ArgumentError(
            f"--out: {out} is the folder of the study {config['study']} alone; give the one that "
            "holds it."
        )
    if not isinstance(config.get("studies"), dict):
        raise ArgumentError(
            f"--out: {out} holds what another command wrote; choose another folder."
        )
    studies: dict[str, Any] = config["studies"]
    return studies


def is_study_folder(folder: AnyPath) -> bool:
    """Tell whether `hessblocks reproduce` wrote `folder`, for one study or several.

    Returns:
        True if it did; False if the folder does not exist.

    Raises:
        OSError: the folder cannot be read.
        RunError: config.json of a study is damaged.
    """
    folder = Path(folder)
    places = [folder, *_inside(folder)]
    try:
        return any(map(_is_one_study, places)) or "studies" in _config(folder)
    except RunError:
        if any((path / engine.POINTS).exists() for path in places):
            raise
        return False  # a damaged file belongs to another command


@contextlib.contextmanager
def refreshed(folder: AnyPath) -> Iterator[None]:
    """Lock `folder`; recompute results.csv, summary.json and figure.json from the points.

    After a killed command, the folder may have points that these files do not include.

    Args:
        folder: folder of one study, or of several studies; studies that this version does not know
            are not changed.

    Raises:
        RunError: another command writes there, a newer version wrote it, or a file is damaged.
    """
    folder = Path(folder)
    if _is_one_study(folder):
        with engine.opened(folder) as store:
            _refresh(folder, store)
            yield
        return
    with storage.held(folder):
        for path in filter(_is_one_study, _inside(folder)):
            with engine.opened(path) as store:
                _refresh(path, store)
        yield


def _refresh(folder: Path, store: engine.Store) -> None:
    if not (request := _asked(folder)):
        return
    if older := _of_older_revisions(store, *request):
        warnings.warn(
            f"{folder / engine.POINTS} {older}; its tables stay as they are", stacklevel=4
        )
        return
    study, points = request
    engine.write_outputs(study, engine.grown(study, points, store), store)


def _of_older_revisions(
    store: engine.Store, study: engine.Study[Any], points: list[engine.Point]
) -> str:
    """Describe a store if all its points have another revision of the study; otherwise empty."""
    if not len(store) or len(engine.Stored.of(store, points).missing) < len(points):
        return ""
    keys = [storage.parse_json(key) for key in store]
    revisions = {key.get("revision") for key in keys if key["study"] == study.name}
    if not revisions or study.revision in revisions:
        return ""
    others = ", ".join(map(str, sorted(revisions, key=str)))
    return (
        f"is of revision {others} of {study.name}, this version measures revision {study.revision}"
    )


def _asked(folder: Path) -> tuple[engine.Study[Any], list[engine.Point]] | None:
    """Return the study of a folder and its points; None if this version does not know the study."""
    config = _config(folder)
    if config["study"] not in names():
        return None
    study = find(config["study"])
    try:
        return study, study.points(config["scale"], config["seeds"])
    except (ArgumentError, KeyError, TypeError) as error:
        raise RunError(
            f"{folder / CONFIG}: damaged; run the same `hessblocks reproduce` again."
        ) from error


def _is_one_study(folder: Path) -> bool:
    return "study" in _config(folder)


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _config(folder: Path) -> dict[str, Any]:
    """Read config.json; empty if it is missing or contains no mapping."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        config = storage.parse_json(path.read_text(encoding="utf-8"))
        return config if isinstance(config, dict) else {}
    except ValueError as error:
        raise RunError(f"{path}: damaged; run the same `hessblocks reproduce` again.") from error


def _write_page(folder: Path) -> tuple[Path, list[str]]:
    """Write the page of a folder of studies; also return a line per incomplete study."""
    from hessblocks_studies.gallery import missing_lines, write_gallery

    with refreshed(folder):
        return write_gallery(folder, names()), missing_lines(folder)


STUDY_FOLDERS = FolderKind(holds=is_study_folder, write_page=_write_page)
"""Reader and page writer of folders of studies, for `hessblocks report`."""
