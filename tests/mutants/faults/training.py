"""Faults of training."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a failure of torch.compile is a traceback", "not $kind.startswith($a) => True",
          "test_layers_that_cannot_be_compiled_are_refused_in_a_sentence",
          within="GuardedTrainer.train"),
    fault("no layer is compiled", "if settings.training.compile: $$a => pass",
          "test_compiled_layers_train_to_the_same_losses", within="make_trainer"),
    fault("other settings enter a finished folder", "if differing: $$a => if False: $$a",
          "test_other_settings_in_the_same_folder_are_named", within="_compare"),
    fault("two processes write to one folder", "with storage.held($path): $$body => if True: $$body",
          "test_two_processes_never_write_to_the_same_folder", within="claimed"),
    fault("a score is the share of wrong answers",
          "$logits.argmax(axis=-1) == $labels => $logits.argmax(axis=-1) != $labels",
          "test_a_score_is_the_share_of_right_answers", within="finetune"),
    fault("held-out masks differ every time", "torch.manual_seed(0) =>",
          "test_held_out_masks_are_the_same_for_everyone_and_a_quarter"),
    fault("gains and norms decay", "$parameter.ndim >= 2 => $parameter.ndim >= 0",
          "test_training_is_the_published_loop", within="get_decay_parameter_names"),
    fault("a diverged step updates the weights", "$model.zero_grad(set_to_none=True) =>",
          "test_the_update_of_a_diverged_step_is_not_made", within="_get_grad_norm"),
    fault("the search of rates ends with the best at its end",
          "(best, best - 1, best + 1) => (best, best - 1)",
          "test_the_best_rate_lies_inside_the_grid", within="next_rate"),
    fault("rates grow with the width", "$a.base_width / $b.config.hidden_size => $b.config.hidden_size / $a.base_width",
          "test_training_is_the_loop_written_out", within="optimiser_of"),
    fault("the last loss is not evaluated",
          "$last or $step % $training.evaluate_every == 0 => $step % $training.evaluate_every == 0",
          "test_a_finished_run_has_its_files_and_no_others"),
    fault("tokens of a line are its steps", "$step * $size * self.settings.model.context => $step",
          "test_a_finished_run_has_its_files_and_no_others"),
    fault("all seeds have the same order of data", "[self.seed, $index] => [$index]",
          "test_the_order_is_whole_passes_and_differs_by_seed", within="__iter__"),
    fault("held-out windows are the first ones", "index * size // count => index",
          "test_spread_indices_are_distinct"),
)
