"""Faults of figures in pages, commands and names of before, the model card and drawings of blocks."""

from tests.mutants.mutant import fault

# fmt: off
FAULTS = (
    fault("a figure of a page keeps its title and caption",
          "text.set_visible($a) => text.set_visible(True)", "test_drawn.py"),
    fault("a figure of a page keeps the room of its caption", "figure.get_tightbbox($a) => figure.bbox_inches",
          "test_drawn.py", within="page_picture"),
    fault("a figure of a page is dated", "{'Date': None, 'Creator': None} => {'Creator': None}",
          "test_drawn.py"),
    fault("a study that fails is named as an option",
          "not isinstance(error, ArgumentError) or not $words or $b => not $words or $b",
          "test_settings_alone_are_named_as_options", within="_named"),
    fault("a field that is not drawn is left out without a word", "yield _said($$a) => _said($$a)",
          "test_a_slot_that_the_drawing_does_not_know_is_named"),
    fault("an activation is named beside the gated MLP that it names",
          "path == 'mlp.activation' and $a => False", "test_a_drawing_names_what_a_block_has"),
)
