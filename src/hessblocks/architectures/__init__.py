"""Known architectures: parameter names, fused weights, the last layer, names in our models."""

from hessblocks.architectures.table import (
    ARCHITECTURES,
    OURS,
    Heads,
    Rule,
    Span,
    heads_of,
    thirds,
    usual_rules,
)
