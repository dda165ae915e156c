"""Remove a skip connection, so that only the output of the sub-block continues."""

from hessblocks.simplify.place import Candidate, Place


def attention_skip(at: Place) -> Candidate | None:
    """Remove the skip connection around attention."""
    return _without(at, "attention", "mlp")


def mlp_skip(at: Place) -> Candidate | None:
    """Remove the skip connection around the MLP."""
    return _without(at, "mlp", "attention")


def _without(at: Place, name: str, other: str) -> Candidate | None:
    branch = getattr(at.block, f"{name}_branch")
    if at.block.layout == "parallel" or at.block.sub_blocks == other or not branch.has_skip:
        return None
    changed = {f"{name}_branch": branch.replace(skip=0.0, trainable_skip=False)}
    return at.candidate(f"{name} skip", at.block.replace(**changed))
