"""Faults of rows."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("two pieces stand for a whole batch", "max(2, self.rows_that_fit // $piece) => 2",
          "test_rows.py"),
    fault("a tie that rounding breaks is a dependence",
          "[here, _moved(here)] => [here]", "test_rows.py"),
    fault("the largest row measures the change of all",
          "$norms.maximum($norms.median()) => $norms.max().expand_as($norms)", "test_rows.py"),
    fault("masked classes hide a dependence",
          "$outputs.to(working_dtype($outputs.dtype)).nan_to_num($$a, neginf=0)"
          " => $outputs.to(working_dtype($outputs.dtype)).nan_to_num($$a)", "test_rows.py"),
    fault("the first batch stands for all that are cut",
          "$numbers[$processes.turns] => $numbers[:1]", "test_rows.py", within="check_rows"),
    fault("a change of a hundredth is rounding", "math.sqrt(torch.finfo(self.dtype).eps) => 0.01",
          "test_rows.py"),
    fault("a process goes on where another refuses rows",
          "if refused: $$a => if refusal and refused: $$a", "test_rows.py"),
    fault("batches are compared for each plan",
          "$cut and $found not in batches.compared => $cut", "test_rows.py"),
    fault("positions are counted from the edge", "$padding[:, None] => 0 * $padding[:, None]",
          "test_padding.py", within="_counted"),
    fault("models that count for themselves are told positions too",
          "$change > $rounding and $helped < $change / BETTER => $helped < 1e9",
          "test_padding.py"),
    fault("nothing is said of a text that is read as another",
          "$left > max(NEGLIGIBLE_CHANGE, $rounding) => $left > 1e9 * max(NEGLIGIBLE_CHANGE, $rounding) and $left < 1e+99",
          "test_padding.py"),
    fault("zeros of a mask that is added are padding",
          "$entries.get('position_ids') is not None or bool(($mask < 0).any())"
          " => $entries.get('position_ids') is not None", "test_padding.py"),
    fault("a decoder's inputs are cut as the encoder's",
          "$k.startswith('decoder_') => $k.startswith('encoder_')", "test_padding.py"),
    fault("positions that come with a batch are replaced",
          "$entries.get('position_ids') is not None or bool(($mask < 0).any())"
          " => bool(($mask < 0).any())", "test_padding.py"),
    fault("closed forms count positions from the edge",
          "ours.get($$a)($model, $told) => ours.get($$a)($model, batch)", "test_padding.py",
          within="last_attention"),
)
