"""Faults where the library meets other distributions, and in rooms of the studies that had none."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("what is not installed is not said", "extensions.lacking_for(word) => extensions.lacking_for('')",
          "test_a_command_of_a_distribution_that_is_not_installed_says_what_to_install"),
    fault("entry points are read for commands of ours", "word in OWN => not OWN",
          "test_for_a_command_of_ours_no_entry_point_is_read"),
    fault("another distribution takes the place of a command of ours",
          "name not in app => True",
          "test_no_distribution_takes_the_place_of_a_command_of_ours"),
    fault("a folder of studies is taken for a run where the studies are not installed",
          "if $lacking := lacking_for($command): $$body =>",
          "test_a_folder_of_studies_without_the_studies_says_what_to_install", within="_is_run"),
    fault("squares are measured whatever stands behind the attention",
          "(through - logits).abs().max() > $a => through.isnan().any()",
          "test_squares_with_more_than_an_unembedding_behind_the_attention_are_refused"),
    fault("unlabelled tokens enter the squares",
          "valid.flatten(0, 1)[..., None] * ($a * unembedding)"
          " => torch.ones_like(valid.flatten(0, 1)[..., None]) * ($a * unembedding)",
          "test_exact_norms_of_the_last_layer_are_those_of_dense_autodiff"),
    fault("a published curve is near at any distance",
          "abs($a[1] - $b[1]) <= NEAR * $c => True",
          "test_near_means_three_joint_standard_errors"),
    fault("a block that is rounding alone has a share of negative curvature",
          "(block - block.T).norm() > ROUNDING * block.norm() => block.isnan().any()",
          "test_a_block_that_is_rounding_alone_is_refused"),
)
