# %% [markdown]
# # How curvature changes while a saved model is fine-tuned
#
# For practitioners: a saved masked language model gets a classification head, `Trainer` trains it,
# and `hb.CurvatureCallback` measures the curvature of its loss on the way. The texts are a toy.
# `classify_a_table.py` does the training on a file of yours, without the curvature.

# %%
import random
import tempfile

import torch
from transformers import (
    AutoModelForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

import hessblocks as hb

torch.set_num_threads(1)  # so small a model gains nothing from more
TOKENS, WORDS = 12, 16
folder = tempfile.mkdtemp()
torch.manual_seed(0)
sizes = {"depth": 2, "width": 32, "heads": 4, "vocab_size": WORDS, "context": TOKENS}
hb.build("sas-p", task="masked-lm", **sizes).save_pretrained(folder)  # stands for a model of yours

# %% [markdown]
# A folder that `save_pretrained` wrote, of hessblocks or of any other model with such a head, is
# opened by the Auto class of the task; the head is new, which a warning says.

# %%
model = AutoModelForSequenceClassification.from_pretrained(
    folder, id2label={0: "low", 1: "high"}, label2id={"low": 0, "high": 1}
)
draw = random.Random(0)


def example() -> dict[str, list[int] | int]:
    """Twelve words; the label says whether the first is of the upper half of the vocabulary."""
    words = [draw.randrange(WORDS) for _ in range(TOKENS)]
    return {"input_ids": words, "labels": int(words[0] >= WORDS // 2)}


train, held_out = [example() for _ in range(512)], [example() for _ in range(128)]

# %% [markdown]
# The callback takes one fixed batch and the name of the loss on it, here cross-entropy of one label
# a text. `attach` lets the numbers into the Trainer's log, and so to whatever the Trainer reports
# to.

# %%
batch = {name: torch.tensor([row[name] for row in held_out[:16]]) for name in held_out[0]}
arguments = TrainingArguments(
    folder,
    max_steps=80,
    per_device_train_batch_size=32,
    learning_rate=1e-2,
    eval_strategy="steps",
    eval_steps=20,
    eval_on_start=True,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=train, eval_dataset=held_out)
callback = hb.CurvatureCallback(batch, every=20, probes=8, loss="classification")
callback.attach(trainer)
trainer.remove_callback(PrinterCallback)  # the table below says it shorter
trainer.train()

# %% [markdown]
# One row a group and moment, with its standard error: the Frobenius norm of the group's block of
# the Hessian. Before training the queries are zero, and so is the curvature of the keys;
# heterogeneity, the largest norm over the smallest, leaves it out.

# %%
losses = {
    line["step"]: line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line
}
for step, loss in losses.items():
    norms = {row["group"]: row for row in callback.rows if row["step"] == step}
    query, key = (norms[f"layers.0.attention.{role}"] for role in ("query", "key"))
    sizes = [row["value"] for row in norms.values() if row["value"] > 0]
    print(
        f"step {step:2}: held-out loss {loss:.3f}, in layer 0",
        f"query {query['value']:.2g} ± {query['standard_error']:.1g},",
        f"key {key['value']:.2g} ± {key['standard_error']:.1g},",
        f"heterogeneity {max(sizes) / min(sizes):,.0f}",
    )
print(f"{len(callback.rows)} values, in the Trainer's log as {callback.name_of(callback.rows[0])}")
