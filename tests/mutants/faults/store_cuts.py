"""Faults of what goes on where it stopped: groups of curvature, steps of a run, digests of models."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("groups of another run count", "canonical({'of': $of, 'group': $a}) => canonical($a)",
          "test_what_is_stored_of_another_run_does_not_count", within="group_key"),
    fault("curvature of a model with another loss is gone on with",
          "not math.isclose($$a) => False",
          "test_curvature_of_a_model_with_another_loss_is_not_gone_on_with", within="_check"),
    fault("what a module says of itself is in no digest", "$text + repr(self.model) => $text",
          "test_digests.py", within="configuration"),
    fault("a digest holds addresses", "_ADDRESS.sub('', $text) => $text",
          "test_digests.py", within="configuration"),
    fault("rows of a step count twice", "storage.step_of($row) not in $again => True",
          "test_of_a_step_of_which_some_rows_are_lost_none_counts_twice", within="_record"),
    fault("a run whose first rows alone are there is trained",
          "(('flops', ''), $a, ('loss', 'final'), $b) => (('flops', ''), $a, ('loss', 'initial'), $b)",
          "test_of_a_step_of_which_some_rows_are_lost_none_counts_twice"),
)
