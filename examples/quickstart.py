"""Continue a prompt with drafts, see how it went, and check that a scheme is exact: about ten seconds on a CPU.

python examples/quickstart.py
"""

import multidraft as md  # isort: skip  # before torch, whose idle threads would spin for long
import torch

from multidraft.zoo import load_pair

# Two models with one tokenizer. This pair comes with the package; any pair from the hub is loaded as usual.
target, draft, tokenizer = load_pair()
inputs = tokenizer(["It was a dark and stormy night"], return_tensors="pt")

# Draft a tree of tokens a step, check it in one pass of the target. The seed makes the run repeat itself.
generator = torch.Generator().manual_seed(0)
tokens, info = md.generate(target, draft, inputs, temperature=0.8, max_new_tokens=48, generator=generator)
print(tokenizer.decode(tokens[0]))
print(f"{info.block_efficiency:.2f} tokens a pass; first drafts accepted with probability {info.acceptance_rate:.3f}")
print(f"the best that any rule could reach with these drafts: {info.optimal_acceptance_rate:.3f}")

# The same through transformers, with its arguments and its defaults.
sequences = target.generate(**inputs, custom_generate=md.generate, draft_model=draft, max_new_tokens=16)
print(tokenizer.decode(sequences[0]))

# A scheme by itself: what it drafts, and the law of what it then emits, averaged over all that could be drafted.
scheme = md.scheme("anchored:lorenz", drafts=2)
p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
drafted, probability = scheme.tuples(q)
law = scheme.outcome(p.expand(len(drafted), -1), q.expand(len(drafted), -1), drafted).law()
print("target:", p.tolist(), "law of the output:", (probability @ law).tolist())
