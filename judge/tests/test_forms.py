"""Answers in a form: what an innocent server may write; servers that leave it, think first, or go on behind it."""

import itertools
import json
import random

import httpx2
import pytest
from multidraft_judge.command import app
from multidraft_judge.errors import AdviceError
from multidraft_judge.evidence.forms import COLOURS, Forms, broken_at
from multidraft_judge.evidence.observation import Ask, Completion, Token
from multidraft_judge.judgement import judge
from sampled import FakeServer
from typer.testing import CliRunner

END = "</s>"
ASKED = {"prompts": ["ab", "ca", "bd"], "budget_tokens": 1500, "max_tokens": 24, "num_logprobs": 4}


def right(pieces, rng):
    return pieces


def late(pieces, rng):
    """Now and then a piece comes that was allowed one place before."""
    place = rng.randrange(1, len(pieces))
    return [*pieces[:place], pieces[place - 1], *pieces[place:]] if rng.random() < 0.3 else pieces


def run_over(pieces, rng):
    """Now and then the end is no end; it is not shown."""
    return [*pieces[:-1], "a", "b", END] if rng.random() < 0.3 else pieces


def ended_early(pieces, rng):
    return [*pieces[:-2], END] if rng.random() < 0.3 else pieces


def thought(pieces, rng):
    return ["I ", "think ", *pieces]


def missing(pieces, rng):
    return [*"abcabc", END]


class FormServer(FakeServer):
    """A server that writes the form a piece at a time, spoilt in some way; all other answers are right."""

    def __init__(self, spoil=right):
        super().__init__()
        self.spoil = spoil

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content or b"{}")
        if "response_format" not in body:
            return super().answer(request)
        with self.lock:
            self.bodies.append(body)
        rng = random.Random(f"{body} {self.bodies.count(body)}")
        words = [json.dumps(rng.choice(COLOURS)) for _ in range(2)]
        spaced = [*"{ ", '"colours"', ":", *"[ ", words[0], ",", words[1], "\n", *"] }", END]
        pieces = self.spoil(spaced, rng)[: body["max_tokens"]]
        parts = [{"index": 0} | self.part(piece) for piece in pieces]
        if body.get("stream"):
            lines = [f"data: {json.dumps({'choices': [part]})}\n\n" for part in parts]
            return httpx2.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))
        lists = {name: [value for part in parts for value in part["logprobs"][name]] for name in parts[0]["logprobs"]}
        whole = parts[-1] | {"text": "".join(part["text"] for part in parts), "logprobs": lists}
        return httpx2.Response(200, json={"choices": [whole]})

    def part(self, piece):
        """One token, which is no text where it is the end."""
        lists = {"tokens": [piece], "token_logprobs": [0.0], "top_logprobs": [{piece: 0.0}]}
        ends = piece == END
        return {"text": "" if ends else piece, "finish_reason": "stop" if ends else None, "logprobs": lists}


def judged(server, **settings):
    return judge("http://fake", "toy", transport=server.transport, **ASKED | {"forms": True} | settings)


@pytest.mark.parametrize("settings", [{}, {"max_tokens": 6, "budget_tokens": 600}, {"temperature": 0.0}])
def test_an_innocent_server_keeps_the_form(settings):
    """Also where texts are cut. False alarm of the bets with odds of 1e-6 at most."""
    verdict = judged(FormServer(), **settings)
    assert (verdict.reasons, verdict.forms.broken) == ([], [])
    assert verdict.forms.begun == verdict.forms.texts >= 20
    weighed = verdict.bets[0].tokens + verdict.greedy_tokens
    assert weighed + verdict.forms.tokens == verdict.tokens  # nothing is bet on beside a form


@pytest.mark.parametrize("spoil", [late, run_over, ended_early])
def test_a_server_that_leaves_the_form_is_guilty(spoil):
    verdict = judged(FormServer(spoil))
    (reason,) = verdict.reasons
    assert reason.startswith("a text does not have the form that was asked for: request ")
    assert 0 < len(verdict.forms.broken) < verdict.forms.texts
    assert not judged(FormServer(spoil), forms=False).guilty  # the twin: without forms nothing shows it


@pytest.mark.parametrize("spoil", [thought, missing])
def test_a_server_that_thinks_first_or_takes_no_forms_is_not_judged_by_them(spoil):
    with pytest.raises(AdviceError, match=r"(\d) of \1 texts do not begin as the form .*; leave --forms out"):
        judged(FormServer(spoil))


def test_nothing_follows_from_few_texts_or_where_few_begin_right():
    def forms(*texts):
        looked_at = Forms()
        for text in texts:
            looked_at.add(Completion(Ask(0, "", 9, formed=True), [Token(END, 0.0, ())], written=text, is_stopped=True))
        return looked_at

    wrong, other, good = "{{", "ab", '{"colours":[]}'
    assert [forms(*texts).convicts for texts in ([wrong] * 3, [wrong] * 4, [good] * 4)] == [False, True, False]
    mixed = forms(wrong, other, good, other)
    assert (mixed.convicts, mixed.is_unknown) == (True, False)
    assert forms(wrong, other, other, other).is_unknown


def test_every_beginning_of_a_text_is_right_until_it_has_ended():
    texts = ['{"colours":["red","blue"]}', ' {\n"colours" : [\t"green" ,\n "red" ] \r\n} ', '{"colours":[]}']
    for text in texts:
        for length in range(len(text) + 1):
            assert broken_at(text[:length], True) is None
            is_whole = text[:length].rstrip().endswith("}")
            assert (broken_at(text[:length], False) is None) == is_whole
    for is_cut in (False, True):  # some servers write the end, but nothing may follow
        whole = texts[0]
        assert [broken_at(whole + rest, is_cut, END) for rest in (END, END + "a")] == [None, len(whole)]


def test_every_other_character_leaves_it():
    """At each place of a text; a letter that is spelt by an escape is let be."""
    text = '{"colours":["red"]}'
    for place, character in itertools.product(range(len(text)), '{}[]:,"xr'):
        changed = text[:place] + character + text[place + 1 :]
        assert (broken_at(changed, False) is None) == (changed == text)
    assert broken_at('{"colours":["\\u0072ed"]}', False) is None


def test_only_some_requests_ask_for_a_form_and_the_others_are_as_without():
    server, without = FormServer(), FormServer()
    judged(server)
    judged(without, forms=False)
    formed = [body for body in server.bodies if "response_format" in body]
    assert 0 < len(formed) < len(server.bodies) / 2
    assert not any("ignore_eos" in body for body in formed)
    assert all(body in without.bodies for body in server.bodies if body not in formed)


def test_a_run_goes_on_and_a_folder_without_forms_is_as_it_was(tmp_path):
    servers = [FormServer() for _ in range(2)]
    first = judged(servers[0], out=tmp_path / "a")
    assert judged(servers[1], out=tmp_path / "a") == first
    assert servers[1].bodies == []
    judged(FormServer(), out=tmp_path / "b", forms=False)
    lines = (tmp_path / "b" / "asked.jsonl").read_text().splitlines()
    header, *records = map(json.loads, lines)
    assert "forms" not in header
    assert {tuple(record) for record in records} == {("ask", "tokens", "prompt_ids", "unlisted")}
    with pytest.raises(AdviceError, match="forms None instead of True"):
        judged(FormServer(), out=tmp_path / "b")


def test_the_command_asks_for_forms(network, prompts):
    def result(*words: str):
        return CliRunner().invoke(app, ["http://fake", "--model", "toy", "--forms", "--prompts", str(prompts), *words])

    few = ("--budget-tokens", "1500", "--max-tokens", "24", "--logprobs", "4")
    network["fake"] = FormServer()
    innocent = result(*few)
    assert innocent.exit_code == 0, innocent.output
    assert "texts leave the form" in innocent.stdout
    network["fake"].spoil = run_over
    assert result(*few).exit_code == 1
    assert "--forms is for a verdict" in result("--measure").stderr


def test_a_function_takes_no_forms():
    with pytest.raises(AdviceError, match="a function takes none"):
        judge(lambda prompt, n: ([], []), forms=True)
