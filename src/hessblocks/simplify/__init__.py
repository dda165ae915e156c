"""Remove parts of a pretrained model: candidates, measured costs, a plan, one pass of refits."""

from hessblocks.simplify.change import LayerChange, one_pass
from hessblocks.simplify.healing import heal
from hessblocks.simplify.passes import Held, Pass
from hessblocks.simplify.place import Candidate, Place, edited
from hessblocks.simplify.plan import Plan, even_plan, priced_plan
from hessblocks.simplify.run import simplify_model, text_parts
from hessblocks.simplify.table import Removals, candidates, measure_removals

__all__ = [
    "Candidate",
    "Held",
    "LayerChange",
    "Pass",
    "Place",
    "Plan",
    "Removals",
    "candidates",
    "edited",
    "even_plan",
    "heal",
    "measure_removals",
    "one_pass",
    "priced_plan",
    "simplify_model",
    "text_parts",
]
