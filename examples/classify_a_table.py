# %% [markdown]
# # A saved model learns to classify the texts of a table
#
# For practitioners: a csv file with the columns `text` and `label`, a saved model with its
# tokeniser, and `Trainer`. The table and the model are toys that stand for yours: put your paths
# into `table` and `folder`, for example `runs/mine/model` of `hessblocks train`.

# %%
import csv
import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

import hessblocks as hb

torch.manual_seed(0)
torch.set_num_threads(1)  # so small a model gains nothing from more
folder = Path(tempfile.mkdtemp())
table = folder / "reviews.csv"
words = ["<pad>", "<unk>", "good", "bad", "great", "poor", "film", "plot", "the", "a", "very"]
inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "<unk>"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>"
).save_pretrained(folder)
sizes = {"depth": 1, "width": 32, "heads": 2, "vocab_size": len(words), "context": 12}
hb.build("sas-p", task="masked-lm", **sizes).save_pretrained(folder)
draw = random.Random(0)
with table.open("w", encoding="utf-8", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(("text", "label"))
    for _ in range(400):
        text = [draw.choice(words[2:6]), *draw.choices(words[6:], k=draw.randint(2, 9))]
        label = "praise" if text[0] in ("good", "great") else "blame"
        rows.writerow((" ".join(draw.sample(text, len(text))), label))

# %% [markdown]
# From here on it is your code. A fifth of the rows is held out; equal texts stay on one side. The
# head is new, which a warning says.

# %%
with table.open(encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
classes = sorted({row["label"] for row in rows})
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(
    folder, id2label=dict(enumerate(classes)), label2id={name: i for i, name in enumerate(classes)}
)
texts = sorted({row["text"] for row in rows})
held = set(random.Random(0).sample(texts, len(texts) // 5))
train, held_out = (
    [
        {
            **tokenizer(row["text"], truncation=True, max_length=model.config.context),
            "labels": classes.index(row["label"]),
        }
        for row in rows
        if (row["text"] in held) == side
    ]
    for side in (False, True)
)

# %% [markdown]
# A model of a few million parameters wants a rate of about 1e-3, a large one 5e-5.

# %%
arguments = TrainingArguments(
    folder / "checkpoints",
    num_train_epochs=6,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    warmup_steps=0.1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=train,
    eval_dataset=held_out,
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=lambda found: {
        "accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))
    },
)
before = trainer.evaluate()["eval_accuracy"]
trainer.train()
after = trainer.evaluate()["eval_accuracy"]

# %% [markdown]
# What needs no model stands beside it: the accuracy of always giving the commonest training label.

# %%
commonest = Counter(row["labels"] for row in train).most_common(1)[0][0]
always = np.mean([row["labels"] == commonest for row in held_out])
print(f"{len(train)} texts, {len(held_out)} held out: always {classes[commonest]} {always:.2f},")
print(f"before training {before:.2f}, after {after:.2f}")
trainer.save_model(folder / "classifier")
tokenizer.save_pretrained(folder / "classifier")
print(pipeline("text-classification", str(folder / "classifier"))("the plot very good"))
