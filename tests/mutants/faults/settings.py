"""Faults of settings."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a setting below its range passes", "$value >= $least => True",
          "test_compare.py::test_settings_outside_their_range_are_refused", within="at_least"),
    fault("a name that is not known passes", "if $choices := $kind.mark(OneOf): $$body =>",
          "test_unknown_names_are_refused_from_python", within="check_ranges"),
    fault("the last step is not observed",
          "$step % $every == 0 or $step == $last => $step % $every == 0",
          "test_each_is_measured_at_its_steps_the_first_and_the_last", within="is_due"),
    fault("SGD decays weights by default", "'sgd': 0.0 => 'sgd': 0.1",
          "test_each_optimiser_has_its_own_defaults"),
    fault("no warm-up", "round(self.warmup * self.steps) => 0",
          "test_training_is_the_published_loop", "test_training_is_the_loop_written_out"),
    fault("an update that cannot be shared out passes", "self.batch_size % self.accumulate => False",
          "test_an_update_that_cannot_be_shared_out_is_refused", within="sequences_each"),
    fault("tokens beyond the context pass", "$sample.tokens > self.model.context => False",
          "test_compare.py::test_settings_outside_their_range_are_refused",
          "test_what_cannot_be_run_is_refused_before_anything_is_written"),
)
