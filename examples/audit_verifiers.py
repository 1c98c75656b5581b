"""Three published acceptance rules that are not lossless as they are used, and one that is.

    python examples/audit_verifiers.py

All of them are used with the most likely tokens of the draft distribution as drafts: nothing is sampled. The first
three then accept as if the drafts had been sampled. Each is written out here from its mathematical description.
"""

import torch
from torch import Tensor

import multidraft as md

EXAMPLE = ([0.5, 0.3, 0.2], [0.6, 0.3, 0.1])  # target, draft
Parts = tuple[Tensor, Tensor]


def left_over(target: Tensor, draft: Tensor) -> Tensor:
    """(target - draft)_+, normalised; the target itself where nothing is left."""
    over = (target - draft).clamp(min=0)
    total = over.sum(-1, keepdim=True)
    return torch.where(total > 0, over / total.clamp(min=1e-300), target)


def at(values: Tensor, token: Tensor) -> Tensor:
    """values[token] as a column."""
    return values.gather(-1, token)


def recursive_rejection_of_top_tokens(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Multi-candidate speculative decoding at draft temperature 0: the top n, with the softmax over them as their law.

    Tokens are tried in turn: accept with min(1, p / q), else p <- (p - q)_+ and q <- q without the token, normalised.
    """
    q = torch.zeros_like(draft).scatter(-1, drafted, draft.gather(-1, drafted))
    alive, accept = torch.ones_like(target[..., :1]), []
    for token in drafted.split(1, -1):
        q = q / q.sum(-1, keepdim=True).clamp(min=1e-300)
        b = (at(target, token) / at(q, token).clamp(min=1e-300)).clamp(max=1)
        accept.append(alive * b)
        alive, target, q = alive * (1 - b), left_over(target, q), q.scatter(-1, token, 0.0)
    return torch.cat(accept, -1), alive * target


def ratio_test_of_the_top_token(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """A greedy chain: the most likely token, accepted with min(1, p / q), else a sample from (p - q)_+."""
    b = (at(target, drafted) / at(draft, drafted)).clamp(max=1)
    return b, (1 - b) * left_over(target, draft)


def ratio_tests_in_random_order(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Two branches: the two most likely tokens, tried in random order; after a rejection p <- (p - q)_+, q stays."""
    accept, residual = torch.zeros_like(drafted, dtype=target.dtype), torch.zeros_like(target)
    for order in ([0, 1], [1, 0]):
        alive, p = torch.ones_like(target[..., :1]), target
        for place in order:
            token = drafted[..., place : place + 1]
            b = (at(p, token) / at(draft, token).clamp(min=1e-300)).clamp(max=1)
            accept[..., place : place + 1] += alive * b / 2
            alive, p = alive * (1 - b), left_over(p, draft)
        residual += alive * p / 2
    return accept, residual


def matching(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Sample from the target, and accept if the token was drafted: what any deterministic drafts may be verified by."""
    return at(target, drafted), target.scatter(-1, drafted, 0.0)


VERIFIERS = {
    "recursive rejection of the top two (multi-candidate decoding, draft temperature 0)": (
        recursive_rejection_of_top_tokens,
        2,
    ),
    "ratio test of the top token (llama-speculative, one branch)": (ratio_test_of_the_top_token, 1),
    "ratio tests of the top two in random order (llama-speculative, two branches)": (ratio_tests_in_random_order, 2),
    "matching against the top two": (matching, 2),
}


def main() -> None:
    """The law of each on the example, and the worst that the audit finds."""
    for title, (verifier, drafts) in VERIFIERS.items():
        example = md.audit(verifier, drafts, law="top", pairs=[EXAMPLE], vocabulary=())
        found = md.audit(verifier, drafts, law="top", vocabulary=())
        print(title)
        print("  target", EXAMPLE[0], " draft", EXAMPLE[1], " drafted", example.exact.worst.drafts[0][0])
        print("  law   ", [round(value, 3) for value in example.exact.worst.law], end="  ")
        print(f"total variation {example.exact.total_variation:.2f}: {example.verdict}")
        print(f"  accepts {example.exact.acceptance:.3f}; a lossless rule at most {example.exact.optimum:.3f}")
        if found.biased:
            worst = found.exact.worst
            print(
                f"  the worst of {found.exact.pairs} pairs, total variation {worst.total_variation:.2f}; see it again:"
            )
            print(f"    md.audit({verifier.__name__}, {drafts}, law='top', vocabulary=(),")
            print(f"             pairs=[({worst.target}, {worst.draft})])")
        else:
            print(f"  {found.exact.pairs} pairs: {found.sentence}")
        print()


if __name__ == "__main__":
    main()
