"""Known architectures: parameter names, fused weights, the last layer, names in our models."""

from hessblocks.architectures.rules import Heads, Rule, Span, heads_of, thirds
from hessblocks.architectures.table import ARCHITECTURES, OURS, Architecture, usual_rules
