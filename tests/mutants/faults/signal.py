"""Faults of signal propagation."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("collapse begins a layer later",
          "len($similarities) - $collapsed => len($similarities) - $collapsed + 1",
          "test_collapse.py", within="rank_collapse"),
    fault("the threshold itself is a collapse", "one > above => one >= above", "test_collapse.py"),
    fault("gradient norms are squares", "square ** 0.5 => square",
          "test_gradient_norms_are_those_of_backward_by_role", within="gradient_norms"),
    fault("the condition number leaves out the smallest value", "values[-1] => values[-2]",
          "test_the_condition_number_is_that_of_the_whole_jacobian", within="conditioning"),
    fault("a model stays in evaluation mode", "$module.training = $training =>",
          "test_frozen_layers_have_no_gradients_and_modes_come_back", within="evaluation"),
    fault("entropy counts padding", "$entropies * $real[:, None] => $entropies",
          "test_padding_leaves_entropy_and_gap_alone", "test_padding_changes_no_number",
          within="attention_entropy"),
    fault("the spectral gap is the ratio",
          "1 - $second / $first.clamp($$a) => $second / $first.clamp($$a)",
          "test_entropy_and_gap_of_known_matrices"),
    fault("the signal's batch stays on the CPU, a dropped device",
          "$tensor.to($device) => $tensor", "test_the_numbers_are_those_of_the_cpu[on_models.py]",
          within="propagate"),
    fault("a token is similar to itself", "together - own => together",
          "test_token_quantities_are_what_they_are_called"),
)
