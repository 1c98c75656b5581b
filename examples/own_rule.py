"""A verification rule of your own: register it, audit it, decode with it. One rule is right; the other is not."""

import multidraft as md  # isort: skip  # before torch, whose idle threads would spin for long
import torch


def right(target, draft, drafted):
    """Try each draft in turn against what remains of the target; then sample from what still remains."""
    accept, left, alive = [], target, torch.ones(len(target))
    for token in drafted.T[..., None]:
        b = (left.gather(-1, token) / draft.gather(-1, token)).clamp(max=1)[:, 0]
        accept.append(alive * b)
        alive, left = alive * (1 - b), (left - draft).clamp(min=0)
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, target)  # all of it was covered
        left = left / left.sum(-1, keepdim=True)
    return torch.stack(accept, -1), alive[:, None] * left


def wrong(target, draft, drafted):
    """Forgets that the target is another after a rejection: samples from the whole of it."""
    accept, residual = right(target, draft, drafted)
    return accept, residual.sum(-1, keepdim=True) * target


md.register("mine:right", law="iid", rule=right)
md.register("mine:wrong", law="iid", rule=wrong)
for name in ("mine:right", "mine:wrong"):
    print(name, md.audit(name, drafts=2, vocabulary=()).verdict, sep=": ")
