"""Faults of the inspection of models."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("shares within their errors are told", "2 * math.hypot(*$a) => 0 * math.hypot(*$a)",
          "test_a_share_within_its_errors_is_not_told", within="cache_sentences"),
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
          "test_a_batch_of_the_user_gives_its_loss_and_is_told_apart"),
    fault("the token behind the vocabulary passes", "$ids.max() >= $a => $ids.max() > $a",
          "test_the_token_just_behind_the_vocabulary_is_refused", within="Subject.encoded"),
    fault("a large model is measured whole", "$obstacle or $size > SMALL => $obstacle",
          "test_a_large_model_is_sampled_with_its_map_and_three_eigenvalues", within="chosen"),
    fault("without second derivatives all parts are tried", "$obstacle or $size > SMALL => $size > SMALL",
          "test_without_second_derivatives_h_o_is_sampled_and_a_line_says_why", within="chosen"),
    fault("why there are no eigenvalues is not said",
          "$obstacle and $settings.eigenvalues is None => False",
          "test_eigenvalues_that_do_not_fit_the_memory_are_reported", within="chosen"),
    fault("a run that goes on chooses anew", "if $before := _before($folder, $settings): "
          "return $before => pass", "test_a_stopped_run_goes_on_with_what_it_chose",
          within="chosen"),
    fault("eigenvalues and residuals change places", "zip(storage.EIGENVALUE, $found, strict=True) => "
          "zip(storage.EIGENVALUE[::-1], $found, strict=True)", "test_choice.py",
          within="_eigenvalue_rows"),
)
