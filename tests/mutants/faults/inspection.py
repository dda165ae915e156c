"""Faults of the inspection of models."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a machine that slows down is not looked at",
          "in_time($$a) => (self.spending.eigenvalues, self.spending.products)",
          "test_eigenvalues_that_time_took_are_said_and_those_asked_for_are_found",
          within="_eigenvalues"),
    fault("eigenvalues that time took are not said", "count < self.spending.eigenvalues => False",
          "test_eigenvalues_that_time_took_are_said_and_those_asked_for_are_found",
          within="complete"),
    fault("a sampled run plans second derivatives",
          "self.problem.value(twice=$a) => self.problem.value()",
          "test_a_sampled_run_takes_no_second_derivative"),
    fault("the exact layer is one behind the last", "int($depth) - 1 => int($depth)",
          "test_the_last_attention_is_exact_and_agrees_with_the_probes", within="_last_layer"),
    fault("a model that lies elsewhere is moved to the first device of its kind",
          "$model if next($model.parameters()).device.type == $device else $other => $other",
          "test_a_model_on_the_second_device_of_a_kind_stays_there"),
    fault("batches of one shape are one batch",
          "f'{$name}{tuple($one.shape)}{$one.tolist()}' => f'{$name}{tuple($one.shape)}'",
          "test_a_batch_of_ones_own_gives_its_loss_and_is_told_apart"),
    fault("the token behind the vocabulary passes", "$ids.max() >= $a => $ids.max() > $a",
          "test_the_token_just_behind_the_vocabulary_is_refused", within="encoded_batch"),
    fault("what is far beyond the budget is tried by probes all the same",
          "$needed <= FAR * $left => True",
          "test_all_parts_are_tried_where_they_are_not_far_beyond_the_budget", within="_norms"),
    fault("what does not fit the budget is measured by probes all the same",
          "$needed <= (purse.for_norms() if $given else purse.left()) => True",
          "test_choice.py", within="_norms"),
    fault("eigenvalues take the time of the norms too",
          "self.left() - ($cost.seconds or 0.0) => self.left()", "test_choice.py",
          within="with_eigenvalues"),
    fault("a run that goes on chooses anew", "if $before := _before($folder, $settings): "
          "return $before => pass", "test_a_stopped_run_goes_on_with_what_it_chose",
          within="chosen"),
    fault("eigenvalues and residuals change places", "zip(storage.EIGENVALUE, $found, strict=True) => "
          "zip(storage.EIGENVALUE[::-1], $found, strict=True)", "test_choice.py",
          within="_eigenvalue_rows"),
    fault("three eigenvalues or none", "count = min(count, products // FEWEST_PRODUCTS) => pass",
          "test_eigenvalues_come_before_more_samples_and_are_fewer_where_time_is_short",
          within="with_eigenvalues"),
    fault("time is kept for three eigenvalues or none",
          "min(EIGENVALUES, int(MOST * left / max(each, 1e-9))) => EIGENVALUES",
          "test_eigenvalues_come_before_more_samples_and_are_fewer_where_time_is_short",
          within="for_norms"),
)
