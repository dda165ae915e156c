"""Faults of batches that are cut, and of texts that are padded."""

from tests.mutants.mutant import Mutant

APART, PADDING = "curvature/products/rows_apart.py", "curvature/losses/padding.py"
ROWS = ("curvature/test_rows.py",)
TEXTS = ("curvature/test_padding.py",)

ROWS_FAULTS = (
    Mutant(
        "two pieces stand for a whole batch",
        file=APART,
        find="max(2, self.fitting // piece) * piece",
        replace="2 * piece",
        tests=ROWS,
    ),
    Mutant(
        "a tie that rounding breaks is a dependence",
        file=APART,
        find="[*points, _moved(self.parameters)]",
        replace="points",
        tests=ROWS,
    ),
    Mutant(
        "the largest row measures the change of all",
        file=APART,
        find="norms.maximum(norms.median())",
        replace="norms.max().expand_as(norms)",
        tests=ROWS,
    ),
    Mutant(
        "masked classes hide a dependence",
        file=APART,
        find="posinf=0, neginf=0",
        replace="posinf=0",
        tests=ROWS,
    ),
    Mutant(
        "the first batch stands for all that are cut",
        file=APART,
        find="set(numbers[processes.turns])",
        replace="set(numbers[:1])",
        tests=ROWS,
    ),
    Mutant(
        "a change of a hundredth is rounding",
        file=APART,
        find="math.sqrt(torch.finfo(self.dtype).eps)",
        replace="1e-2",
        tests=ROWS,
    ),
    Mutant(
        "a process goes on where another refuses rows",
        file=APART,
        find="    if refused:",
        replace="    if refusal and refused:",
        tests=ROWS,
    ),
    Mutant(
        "batches are compared for each plan",
        file="curvature/products/passes.py",
        find=" and rows not in problem.batches.compared",
        replace="",
        tests=ROWS,
    ),
    Mutant(
        "positions are counted from the edge",
        file=PADDING,
        find="- padding[:, None]",
        replace="- 0 * padding[:, None]",
        tests=TEXTS,
    ),
    Mutant(
        "models that count for themselves are told positions too",
        file=PADDING,
        find="needed = change > rounding and helped < change / BETTER",
        replace="needed = helped < 1e9",
        tests=TEXTS,
    ),
    Mutant(
        "nothing is said of a text that is read as another",
        file=PADDING,
        find="if left > max(ALIKE, rounding):",
        replace="if left > 1e9 * max(ALIKE, rounding) and left < 1e99:",
        tests=TEXTS,
    ),
    Mutant(
        "zeros of a mask that is added are padding",
        file=PADDING,
        find=" or bool((mask < 0).any())",
        replace="",
        tests=TEXTS,
    ),
    Mutant(
        "a decoder's inputs are cut as the encoder's",
        file=PADDING,
        find='if k.startswith("decoder_")',
        replace='if k.startswith("encoder_")',
        tests=TEXTS,
    ),
    Mutant(
        "positions that come with a batch are replaced",
        file=PADDING,
        find='entries.get("position_ids") is not None or ',
        replace="",
        tests=TEXTS,
    ),
    Mutant(
        "closed forms count positions from the edge",
        file="curvature/last_layer/last_attention.py",
        find="_TAKERS[kind](model, told)",
        replace="_TAKERS[kind](model, batch)",
        tests=TEXTS,
    ),
)
