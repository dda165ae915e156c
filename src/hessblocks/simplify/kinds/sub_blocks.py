"""Remove a whole layer, or its attention, or its MLP."""

from hessblocks.simplify.place import Candidate, Place

SKIP = "attention_branch.skip"


def layer(at: Place) -> Candidate | None:
    """Remove the layer."""
    if at.model.config.depth == 1 or not _attention_elsewhere(at):
        return None
    return at.candidate("layer", None)


def attention(at: Place) -> Candidate | None:
    """Remove the attention of the layer."""
    if at.block.sub_blocks != "both" or not _attention_elsewhere(at):
        return None
    block, state = at.block, at.state
    parallel, skip = block.layout == "parallel", block.attention_branch
    if parallel and block.mlp_norm is None:
        norms = {k: v for k, v in state.items() if k.startswith("attention_norm.")}
        state |= {name.replace("attention", "mlp", 1): v for name, v in norms.items()}
    fields = {"layout": "sequential", "mlp_norm": block.mlp_norm or block.norm}
    if parallel:
        fields["mlp_branch"] = block.mlp_branch.replace(
            skip=skip.skip, trainable_skip=skip.trainable_skip
        )
        state |= {k.replace("attention", "mlp"): state[k] for k in state if k.endswith(SKIP)}
    made = block.replace(sub_blocks="mlp", **fields)
    return at.candidate("attention", made, state)


def mlp(at: Place) -> Candidate | None:
    """Remove the MLP of the layer."""
    if at.block.sub_blocks != "both":
        return None
    made = at.block.replace(sub_blocks="attention", layout="sequential", mlp_norm=None)
    return at.candidate("mlp", made)


def _attention_elsewhere(at: Place) -> bool:
    others = [block for n, block in enumerate(at.model.config.blocks) if n != at.index]
    return any(block.sub_blocks != "mlp" for block in others)
