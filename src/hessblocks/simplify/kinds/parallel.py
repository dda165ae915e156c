"""Compute attention and MLP in parallel, from the same hidden states, instead of in sequence."""

from hessblocks.simplify.place import Candidate, Place


def parallel(at: Place) -> Candidate | None:
    """Let attention and MLP both read the input of the layer; each keeps its norm."""
    block = at.block
    plain = block.layout == "sequential" and block.norm_placement == "pre"
    branch = block.mlp_branch
    if block.sub_blocks != "both" or not plain or branch.skip != 1 or branch.trainable_skip:
        return None
    made = block.replace(
        layout="parallel",
        mlp_norm=block.mlp_norm or block.norm,
        mlp_branch=branch.replace(skip=0.0),
    )
    return at.candidate("parallel", made)
