"""Take a skip away: what goes on is what the sub-block gives."""

from hessblocks.simplify.place import Candidate, Place


def attention_skip(at: Place) -> Candidate | None:
    """Take the skip around attention away."""
    return _without(at, "attention", "mlp")


def mlp_skip(at: Place) -> Candidate | None:
    """Take the skip around the MLP away."""
    return _without(at, "mlp", "attention")


def _without(at: Place, name: str, other: str) -> Candidate | None:
    branch = getattr(at.block, f"{name}_branch")
    if at.block.layout == "parallel" or at.block.sub_blocks == other or not branch.has_skip:
        return None
    changed = {f"{name}_branch": branch.replace(skip=0.0, trainable_skip=False)}
    return at.candidate(f"{name} skip", at.block.replace(**changed))
