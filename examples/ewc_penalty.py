# %% [markdown]
# # Learn a second task without forgetting the first
#
# For practitioners: elastic weight consolidation holds each weight back by what moving it costs the
# first task, ½ λ Σ diag(F) (θ − θ₀)². The diagonal is the mean of squares of sampled gradients
# (`hb.diagonal(..., method="sampled")`), which is never negative. The tasks are toys that stand for
# yours: the second one can be solved by turning round what the first has learned, or by other
# weights.

# %%
import torch
from torch import nn

import hessblocks as hb

torch.manual_seed(0)
torch.set_num_threads(1)  # so small a model gains nothing from more


def task(shown):
    """Draw points of 8 coordinates; one half alone is shown first, then the other misleads."""
    halves = torch.randn(256, 4)
    points = [-3 * halves, halves] if shown == "all" else [halves, torch.zeros(256, 4)]
    return torch.cat(points, 1), (halves.sum(1) > 0).long()


first, second = task("half"), task("all")
model = nn.Linear(8, 2)


def ewc_penalty(parameters, start, weights):
    """½ Σ diag(F) (θ − θ₀)²: the KL in nats that the first task is expected to lose."""
    return (
        sum((w * (p - s) ** 2).sum() for p, s, w in zip(parameters, start, weights, strict=True))
        / 2
    )


def train(data, strength=0.0, start=(), weights=()):
    """Learn a task, held back where a strength is given."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(500):
        loss = nn.functional.cross_entropy(model(data[0]), data[1])
        if strength:
            loss = loss + strength * ewc_penalty([*model.parameters()], start, weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def right(data):
    """Share of the points that are labelled right."""
    return float((model(data[0]).argmax(-1) == data[1]).float().mean())


# %% [markdown]
# The first task is learned, and the diagonal of its Fisher matrix taken.

# %%
train(first)
start = {name: p.detach().clone() for name, p in model.named_parameters()}
fisher = hb.OuterProduct(hb.Problem(model, first, "classification"))
diagonal = hb.diagonal(fisher, 32, method="sampled")
weights = fisher.named_tensors(diagonal.values)
print(f"first task learned: {right(first):.2f} right; {diagonal}")

# %% [markdown]
# The second one is learned from there, without and with the penalty.

# %%
for strength in (0.0, 10.0):
    model.load_state_dict(start)
    train(second, strength, start.values(), weights.values())
    print(
        f"strength {strength:3.0f}: first task {right(first):.2f}, second {right(second):.2f} right"
    )
