"""Remove parts of a pretrained model: candidates, measured costs, forecasts, a plan, healing."""

from hessblocks.simplify.healing import heal
from hessblocks.simplify.kinds import KINDS
from hessblocks.simplify.least_squares import NormalEquations, Refit
from hessblocks.simplify.passes import Cost, Held, Pass
from hessblocks.simplify.place import Candidate, Place, edited, saved_between
from hessblocks.simplify.plan import Plan, Step
from hessblocks.simplify.run import simplify_model, text_parts
from hessblocks.simplify.table import Removals, candidates, measure_removals

__all__ = [
    "KINDS",
    "Candidate",
    "Cost",
    "Held",
    "NormalEquations",
    "Pass",
    "Place",
    "Plan",
    "Refit",
    "Removals",
    "Step",
    "candidates",
    "edited",
    "heal",
    "measure_removals",
    "saved_between",
    "simplify_model",
    "text_parts",
]
