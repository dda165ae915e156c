"""Faults of the modes in which a forward pass is differentiated."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a model that differentiates inside keeps its closed forms",
          "watch.differentiated => False",
          "test_a_model_that_differentiates_by_its_inputs", within="Forward"),
    fault("logits are lazy where they are asked for at once",
          "copied._raise_mode(Mode.CLOSED_FORMS) => pass",
          "test_logits_are_made_at_once_on_request", within="Forward"),
)
