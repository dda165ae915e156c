"""Addition as next-token prediction, the task of the Hessian paper.

A sum of two numbers with 5 digits is written `ddddd+ddddd=dddddd`: 12 symbols, 18 tokens. The
loss covers the 6 digits of the answer.

Source: Ormaniec, Dangel & Singh (2025), section 4 and the authors' notebook.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from hessblocks.conventions import IGNORED
from hessblocks.errors import ArgumentError

SYMBOLS = "0123456789+="


def addition_batch(
    sums: int, *, digits: int = 5, seed: int = 0
) -> dict[str, Int[Tensor, "sums tokens"]]:
    """Draw random sums of two numbers, as tokens and labels.

    Args:
        sums: number of sums, drawn uniformly with replacement.
        digits: digits of each summand, including leading zeros.
        seed: seed of the draw.

    Returns:
        `input_ids` and `labels`, each (sums, 3 · digits + 3). Labels equal the answer's digits and
        are −100 elsewhere. As in Hugging Face's models, a label is predicted from the token before
        it.

    Raises:
        ArgumentError: fewer than one sum or digit, or more than 18 digits.

    Examples:
        >>> read(addition_batch(1, digits=2)["input_ids"][0])
        '44+39=083'
    """
    if sums < 1:
        raise ArgumentError(f"sums: expected at least 1, got {sums}")
    if not 1 <= digits <= 18:
        raise ArgumentError(f"digits: expected 1 to 18, got {digits}")
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randint(0, 10**digits, (2, sums), generator=generator)
    plus, equals = (torch.full((sums, 1), SYMBOLS.index(symbol)) for symbol in "+=")
    answer = _digits(first + second, digits + 1)
    question = torch.cat([_digits(first, digits), plus, _digits(second, digits), equals], dim=1)
    labels = torch.cat([torch.full_like(question, IGNORED), answer], dim=1)
    return {"input_ids": torch.cat([question, answer], dim=1), "labels": labels}


def read(tokens: Int[Tensor, " tokens"]) -> str:
    """Convert the tokens of one sum to text."""
    return "".join(SYMBOLS[token] for token in tokens.tolist())


def _digits(numbers: Tensor, digits: int) -> Tensor:
    powers = 10 ** torch.arange(digits - 1, -1, -1)
    return numbers[:, None] // powers % 10
