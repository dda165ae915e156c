"""All planted faults."""

from tests.mutants.curvature_faults import CURVATURE
from tests.mutants.model_faults import MODELS
from tests.mutants.mutant import Mutant
from tests.mutants.result_faults import RESULTS
from tests.mutants.rows_faults import ROWS_FAULTS
from tests.mutants.surviving import SURVIVING

MUTANTS: tuple[Mutant, ...] = (*SURVIVING, *CURVATURE, *MODELS, *RESULTS, *ROWS_FAULTS)
