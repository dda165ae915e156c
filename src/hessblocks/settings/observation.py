"""Choose what is measured of a model besides its loss: where, and how often."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar

from hessblocks.errors import ArgumentError
from hessblocks.settings.field_marks import NoOption, Range, at_least, check_ranges

NEVER = Range(lambda value: value >= 0, "a number of steps, or 0 for never")
ROLES = ("query", "key", "value")


@dataclass(frozen=True, kw_only=True)
class CurvatureSettings:
    """Held-out batch and probes that curvature and signal are measured with."""

    option_prefix: ClassVar[str] = "curvature_"
    sequences: Annotated[int, at_least(1)] = 8
    """Held-out sequences of the curvature."""
    tokens: Annotated[int, at_least(2)] = 32
    """Tokens of each of them, 2 or more."""
    probes: Annotated[int, at_least(4)] = 8
    """Random vectors per parameter group, 4 or more."""
    seed: Annotated[int, NoOption()] = 0
    """Of the windows and of the probes: the same for every preset and seed of the comparison."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class ObservationSettings:
    """What is measured along training.

    Besides losses: at step 0, every so many steps, and last.
    """

    gains_every: Annotated[int, NEVER] = 0
    """Steps between looks at the trained gains; 0 for never."""
    signal_every: Annotated[int, NEVER] = 0
    """Steps between looks at the signal through the layers; 0 for never."""
    curvature_every: Annotated[int, NEVER] = 0
    """Steps between norms of H, H_o and H_f; 0 for never."""
    curvature_groups: tuple[str, ...] = ROLES
    """Roles or names (with * and ?) of the groups that they are measured of."""
    sample: CurvatureSettings = field(default_factory=CurvatureSettings)
    """The fixed batch and the probes."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges(self)
        if self.curvature_groups != ROLES and not self.curvature_every:
            raise ArgumentError(
                "--curvature-groups: nothing is measured of them without --curvature-every; give "
                "both or none."
            )
        if self.curvature_every and not self.curvature_groups:
            raise ArgumentError("--curvature-groups: expected roles or names of groups, got none.")

    @property
    def any(self) -> bool:
        """Tell whether anything is measured."""
        return bool(self.gains_every or self.needs_batch)

    @property
    def needs_batch(self) -> bool:
        """Tell whether the fixed batch is used."""
        return bool(self.signal_every or self.curvature_every)

    def chooses(self, name: str, role: str) -> bool:
        """Tell whether the norms of this group are measured."""
        return any(chooses(wanted, name, role) for wanted in self.curvature_groups)


def chooses(wanted: str, name: str, role: str) -> bool:
    """Tell whether a role, or a name with * and ?, matches this group."""
    return role == wanted or fnmatchcase(name, wanted)


def is_due(every: int, step: int, last: int) -> bool:
    """Tell whether a step is observed: the first, each `every`-th and the last."""
    return every > 0 and (step % every == 0 or step == last)
