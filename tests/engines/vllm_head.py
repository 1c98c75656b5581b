"""The exported head in vLLM: greedy text is that of plain decoding, and drafts are accepted. For `make test-engines`.

    python tests/engines/vllm_head.py TARGET_FOLDER HEAD_FOLDER PROMPTS.jsonl

It runs with vLLM's own Python, which has no pytest. In float32, because in bfloat16 a pass over several tokens rounds
otherwise than a pass over one.
"""

import json
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
CHATS, NEW_TOKENS, DRAFTS = 8, 64, 3
MIN_ACCEPTANCE_LENGTH = 1.5  # a head whose output layer is missing gives 1.0


def answers(target: str, chats: list[list[dict[str, str]]], head: str | None) -> tuple[list[str], float]:
    """Greedy answers, and the tokens that a pass gives in the mean, without the first one of an answer."""
    from vllm import LLM, SamplingParams

    drafting: Any = head and {"method": "eagle3", "model": head, "num_speculative_tokens": DRAFTS}
    settings: dict[str, Any] = dict(dtype="float32", max_model_len=1024, enforce_eager=True, max_num_seqs=CHATS)
    model = LLM(target, speculative_config=drafting, disable_log_stats=False, **settings)
    outputs = model.chat(chats, SamplingParams(temperature=0, max_tokens=NEW_TOKENS), use_tqdm=False)
    counts = {metric.name: metric.value for metric in model.get_metrics() if hasattr(metric, "value")}
    steps, accepted = (counts.get(f"vllm:spec_decode_num_{name}", 0) for name in ("drafts", "accepted_tokens"))
    return [output.outputs[0].text for output in outputs], 1 + accepted / max(steps, 1)


def main() -> None:
    """Compare, and end with an error where something is not as it should be."""
    target, head, prompts = sys.argv[1:]
    with Path(prompts).open() as lines:
        chats = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in islice(lines, CHATS)]
    (plain, _), (drafted, length) = answers(target, chats, None), answers(target, chats, head)
    differing = [index for index, pair in enumerate(zip(plain, drafted, strict=True)) if pair[0] != pair[1]]
    print(f"acceptance length {length:.2f} over {len(chats)} chats; other text in {differing or 'none'}")
    assert len(chats) == CHATS
    assert differing == []
    assert length > MIN_ACCEPTANCE_LENGTH


if __name__ == "__main__":
    main()
