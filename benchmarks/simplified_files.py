"""Tokens a second in llama.cpp: GGUF files that `simplify --to gguf` wrote beside the original.

    HESSBLOCKS_SIMPLIFIED=DIR/model.gguf python -m benchmarks simplified_files

HESSBLOCKS_SMOLLM2 is the original's GGUF file. The original is written by the same code and in the
same type as the other files (paths with `:` between them). A turn runs each file once: a prompt of
512 tokens, then 64 tokens one by one, and 64 one by one without a prompt; one thread, processor
time. A ratio is the median over turns
of tokens a second of both, its error half the distance of the middle two thirds of the turns over
the square root of their number.
"""

import contextlib
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import hessblocks as hb
from benchmarks._llama_cpp import Opened

PROMPT, DECODED, TURNS = 512, 64, 9
NEEDED = "HESSBLOCKS_SMOLLM2", "HESSBLOCKS_SIMPLIFIED"
"""Environment variables with the original's GGUF file and the paths of the others."""


def turn(model: Opened, ids: list[int]) -> tuple[float, ...]:
    """Processor seconds of the prompt, of the tokens after it, and of tokens without a prompt."""
    seconds = []
    for prompt in (PROMPT, 0):
        model.forget()
        start = time.process_time()
        if prompt:
            model.decode(ids[:prompt])
            seconds.append(time.process_time() - start)
        start = time.process_time()
        for place in range(prompt, prompt + DECODED):
            model.decode([ids[place]], place)
        seconds.append(time.process_time() - start)
    return tuple(seconds)


def ratio(slow: list[float], fast: list[float]) -> dict[str, float]:
    """Median of the ratios of paired times, with an error."""
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    low, high = ratios[len(ratios) // 6], ratios[-1 - len(ratios) // 6]
    error = (high - low) / 2 / len(ratios) ** 0.5
    return {"times": round(statistics.median(ratios), 3), "error": round(error, 3)}


def main() -> dict[str, Any]:
    """Time all files in turns."""
    source, others = os.environ[NEEDED[0]], os.environ[NEEDED[1]].split(":")
    ids = np.random.default_rng(0).integers(100, 40_000, PROMPT + DECODED).tolist()
    with TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        original = Path(folder) / "original.gguf"
        model, _ = hb.load(source)
        hb.to_gguf(hb.from_pretrained_blocks(model), original, source)
        paths = [original, *map(Path, others)]
        models = [opened.enter_context(contextlib.closing(Opened(p, 1024))) for p in paths]
        times = [[turn(model, ids) for model in models] for _ in range(TURNS + 1)][1:]
        figures: dict[str, Any] = {}
        for number, path in enumerate(paths):
            prompt, decoding, alone = zip(*(row[number] for row in times), strict=True)
            figures[str(path.parent.name if number else "original")] = here = {
                "megabytes": round(path.stat().st_size / 1e6, 1),
                "prompt tokens a second": round(PROMPT / statistics.median(prompt), 1),
                "decoded tokens a second": round(DECODED / statistics.median(decoding), 1),
                "without a prompt": round(DECODED / statistics.median(alone), 1),
            }
            if number:
                here["prompt"] = ratio([row[0][0] for row in times], list(prompt))
                here["decoding"] = ratio([row[0][1] for row in times], list(decoding))
                here["decoding without a prompt"] = ratio([row[0][2] for row in times], list(alone))
            print(path.parent.name if number else "original", here)
    return figures
