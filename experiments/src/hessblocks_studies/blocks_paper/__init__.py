"""Studies of the figures and tables of "Simplifying Transformer Blocks"."""

STUDIES = {
    "skipless": "skipless",
    "restrict-updates": "restrict_updates",
    "gains": "gain_trajectories",
    "speed": "speed",
    "depth": "depth",
    "masked-lm": "masked_lm",
    "downstream": "finetuning",
    "longer": "longer",
    "ablations": "ablations",
    "long-windows": "long_windows",
    "mirrored-starts": "mirrored_starts",
    "tuning-recipe": "tuning_recipe",
}
"""Name of a study → module of this package with the study as `STUDY`, in the paper's order."""
