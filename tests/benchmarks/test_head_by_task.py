"""How often a head is right, by task: heads that are always and never right have the rates that they must have."""

import json

import head_by_task
import pytest
import torch
from multidraft_research.training.conversations import TokenizedChat
from multidraft_research.training.heads import captured
from multidraft_research.training.heads.drafts import DraftLogits
from multidraft_research.training.small_draft import TokenSet
from tiny import tiny_model

KNOWN = TokenSet(range(0, 60, 2), 61)
TASKS = ["first", "second", "first"]


@pytest.fixture(scope="module")
def texts() -> list:
    rows = torch.randint(61, (3, 14), generator=torch.Generator().manual_seed(0)).tolist()
    conversations = [TokenizedChat(row, 4, 5, {"id": "0", "temperature": 0.0, "answer": 5}) for row in rows]
    return list(captured.read_texts(tiny_model("llama"), conversations, (0, 1, 2)))


@pytest.mark.parametrize(("shift", "is_right"), [(0, True), (1, False)])
def test_a_head_is_right_where_its_likeliest_token_is_the_targets(texts, shift, is_right, monkeypatch):
    def draft_along(head, batch, depths):
        laws = torch.arange(len(batch.target_probs.ids))
        likeliest = (batch.target_probs.ids[:, 0] + shift) % KNOWN.size
        return [DraftLogits(1, 50 * torch.nn.functional.one_hot(likeliest, KNOWN.size).float(), laws)]

    monkeypatch.setattr(head_by_task, "draft_along", draft_along)
    lines = {line["task"]: line for line in head_by_task.by_task(None, KNOWN, texts, TASKS, "head")}
    expected = [text.text.ids[:, 0] for _, text in texts]
    assert {task: line["tokens"] for task, line in lines.items()} == {"all": 27, "first": 18, "second": 9}
    assert lines["second"]["covered"] == pytest.approx((expected[1] % 2 == 0).mean())
    for line in lines.values():
        assert line["right"] == (line["covered"] if is_right else 0)
        assert line["right"] <= line["among three"] <= line["covered"]
    assert head_by_task.table(list(lines.values())).row_count == 3


def test_answers_are_read_with_the_tasks_of_their_prompts(tmp_path):
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text(json.dumps({"id": "a", "task": "qa/short", "prompt": "hi"}) + "\n")
    answers.write_text(json.dumps({"results": "x"}) + "\n" + json.dumps({"id": "a", "text": "yo"}) + "\n")

    class Letters:
        chat_template, eos_token = "", ""

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text]}

    tasks, [conversation] = head_by_task.read(prompts, answers, Letters())
    assert (tasks, conversation.tokens, conversation.answer) == (["qa"], [ord(letter) for letter in "hiyo"], 2)
