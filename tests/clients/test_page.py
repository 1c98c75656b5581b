"""The web page in a real browser, Debian's Chromium: against the server, and with answers that the test writes."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import NAME, ROOT, ZOO
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (apt install chromium)")
DESKTOP = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
MAX_WAIT = 120_000  # milliseconds
KEY = "s3cret"
EXPECTED_ERRORS = re.compile(  # which browsers log, whatever a page does about them
    r"the server responded with a status of (400|401|503) |net::ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING)"
)
Open = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=CHROMIUM) as chromium:
        yield chromium


@pytest.fixture
def open_page(browser, url) -> Iterator[Open]:
    """Opens the page; at the end no console has shown an error, and no request has left the server."""
    problems, contexts = list[str](), list[Any]()

    def open_one(address: str = url, is_ready: bool = True, **device: Any) -> Page:
        contexts.append(context := browser.new_context(**device or DESKTOP))
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type != "log" else None)
        page.on("request", lambda request: None if request.url.startswith(address) else problems.append(request.url))
        page.goto(address)
        if is_ready:
            expect(page.locator("#send")).to_be_enabled(timeout=MAX_WAIT)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert [problem for problem in problems if not EXPECTED_ERRORS.search(problem)] == []


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """A server of one's own, which may still be loading: its address."""
    command = [os.environ.get("MULTIDRAFT", ROOT / ".venv" / "bin" / "multidraft"), "serve", "--port", "0"]
    command += ["--name", NAME, "--target", ZOO / "target", "--draft", ZOO / "draft", "--tree", "2x1", *options]
    with subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        try:
            port = re.search(r"port (\d+)", process.stderr.readline())
            assert port is not None
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            process.kill()


def ask(page: Page, question: str) -> Locator:
    """Send a question; the exchange that it begins."""
    page.fill("#question", question)
    page.press("#question", "Enter")
    return page.locator(".exchange").last


def wait_for_end(page: Page) -> None:
    """Until nothing is answered."""
    expect(page.locator("#send")).to_have_text("Send", timeout=MAX_WAIT)


def write_answer(page: Page, text: str, end: str = "stop", last: str = "data: [DONE]\n\n", busy: bool = False) -> None:
    """Let every answer be this text, in pieces of 7 characters with a tree each."""
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
    tree = [{"text": "root", "parent": None, "accepted": True}, {"text": "<b>", "parent": 0, "accepted": True}]

    def event(count: int, shown: str, nodes: list[Any], finish: str | None) -> str:
        kinds = {"pieces": [{"text": shown, "kind": "accepted"}], "tree": nodes}
        speed = {"prompt_tokens_read": 9, "plain_seconds": 1.0, "busy": busy}
        choice = {"index": 0, "delta": {"content": shown}, "finish_reason": finish, "multidraft": kinds | speed}
        return (
            f"data: {json.dumps({'choices': [choice], 'usage': {'prompt_tokens': 9, 'completion_tokens': count}})}\n\n"
        )

    steps = [event(index, piece, tree, None) for index, piece in enumerate(pieces, 1)]
    body = "".join([*steps, event(len(pieces), "", [], end)]) + last
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))


def without_end(page: Page) -> None:
    """Let the server's answers go on until they are stopped."""

    def change(route: Any) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True, "max_tokens": 900}))

    page.route("**/v1/chat/completions", change)


@pytest.mark.parametrize("device", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_an_answer_streams(open_page, device):
    page = open_page(**device)
    exchange = ask(page, "It was a dark\nand stormy night")
    expect(exchange.locator(".question")).to_have_text("It was a dark\nand stormy night")
    wait_for_end(page)
    expect(exchange.locator(".answer")).not_to_be_empty()
    expect(exchange.locator(".foot")).to_contain_text(re.compile(r"\d+ tokens · \d\.\d\d a pass"))
    expect(exchange.locator(".note")).to_be_hidden()
    expect(page.locator("#model")).to_have_text(NAME)
    assert page.evaluate("document.documentElement.scrollWidth") == device["viewport"]["width"]
    expect(page.locator("#tree svg")).to_be_visible(visible=device is DESKTOP)
    expect(page.locator("#system")).to_be_visible(visible=device is DESKTOP)
    if device is PHONE:
        page.locator("#tree-panel summary").tap()
        page.locator("#settings-panel summary").tap()
    expect(page.locator("#tree svg text").first).to_be_visible()
    for field in page.locator("#settings :is(input, textarea)").all():
        assert field.bounding_box()["x"] + field.bounding_box()["width"] <= device["viewport"]["width"]


def test_a_note_has_no_colour_of_a_token(open_page):
    page = open_page()
    write_answer(page, "Half an ans", end="length")
    note = ask(page, "Go on").locator(".note")
    expect(note).to_be_visible()
    colour = "element => getComputedStyle(element).color"
    assert note.evaluate(colour) not in page.locator("#legend span").evaluate_all(f"all => all.map({colour})")


def test_the_slider_goes_through_all_steps(open_page):
    page = open_page()
    write_answer(page, "one two three four five six seven eight nine ten")
    exchange = ask(page, "Count")
    wait_for_end(page)
    expect(page.locator("#step-text")).to_have_text("Step 7 of 7: 1 drafted, 1 accepted")
    page.locator("#step").press("Home")
    expect(page.locator("#step-text")).to_contain_text("Step 1 of 7")
    expect(page.locator("#tree svg text")).to_have_text(["root", "<b>"])
    expect(exchange.locator(".foot")).not_to_contain_text("times plain")  # after 6 timed steps it would be noise


def test_times_plain_is_shown_where_the_server_knows_it(open_page):
    page = open_page()
    write_answer(page, "word " * 20)
    exchange = ask(page, "Go on")
    wait_for_end(page)
    expect(exchange.locator(".foot")).to_contain_text(re.compile(r"15 tokens · 1.00 a pass · [\d.]+ times plain"))


def test_a_busy_machine_is_named_in_place_of_the_ratio(open_page):
    page = open_page()
    write_answer(page, "word " * 20, busy=True)
    exchange = ask(page, "Go on")
    wait_for_end(page)
    expect(exchange.locator(".foot")).to_contain_text("1.00 a pass · busy")
    expect(exchange.locator(".foot")).not_to_contain_text("times plain")


def test_stop_escape_regenerate_and_delete(open_page):
    page = open_page()
    without_end(page)
    exchange = ask(page, "The old man")
    expect(exchange.locator(".answer")).not_to_be_empty(timeout=MAX_WAIT)
    page.click("#send")
    expect(exchange.locator(".note")).to_have_text("Stopped.")
    exchange.get_by_role("button", name="Regenerate").click()
    expect(exchange.locator(".note")).to_be_hidden()
    expect(exchange.locator(".answer")).not_to_be_empty(timeout=MAX_WAIT)
    page.keyboard.press("Escape")
    expect(exchange.locator(".note")).to_have_text("Stopped.")
    expect(page.locator("#send")).to_have_text("Send")
    exchange.get_by_role("button", name="Delete").click()
    expect(page.locator(".exchange")).to_have_count(0)


def test_shift_and_enter_break_the_line_and_enter_alone_never_stops(open_page):
    page = open_page()
    page.type("#question", "a")
    page.press("#question", "Shift+Enter")
    expect(page.locator("#question")).to_have_value("a\n")
    expect(page.locator(".exchange")).to_have_count(0)
    without_end(page)
    exchange = ask(page, "The old man")
    page.type("#question", "next")
    page.press("#question", "Enter")
    expect(exchange.locator(".answer")).not_to_be_empty(timeout=MAX_WAIT)
    expect(page.locator("#send")).to_have_text("Stop")
    expect(page.locator("#question")).to_have_value("next")
    page.click("#send")
    expect(exchange.locator(".note")).to_have_text("Stopped.")


def test_the_talk_and_the_settings_are_kept_over_a_reload(open_page):
    page = open_page()
    write_answer(page, "Kept *text*.")
    page.fill("#system", "Be short.")
    page.fill("#seed", "7")
    ask(page, "Keep this")
    wait_for_end(page)
    page.reload()
    expect(page.locator(".question")).to_have_text("Keep this")
    expect(page.locator(".answer em")).to_have_text("text")
    expect(page.locator("#send")).to_be_enabled()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "And this")
    body = sent.value.post_data_json
    assert [message["content"] for message in body["messages"]] == [
        "Be short.",
        "Keep this",
        "Kept *text*.",
        "And this",
    ]
    assert (body["seed"], body["temperature"], body["top_p"]) == (7, 0.8, 1)
    assert "max_tokens" not in body
    wait_for_end(page)
    page.click("#new-talk")
    page.reload()
    expect(page.locator(".exchange")).to_have_count(0)


def test_an_answer_that_a_reload_cuts_says_so(open_page):
    page = open_page()
    without_end(page)
    exchange = ask(page, "The old man")
    expect(exchange.locator(".answer")).not_to_be_empty(timeout=MAX_WAIT)
    page.reload()
    expect(page.locator(".answer")).not_to_be_empty()
    expect(page.locator(".note")).to_have_text("The page was closed: this answer is not complete.")


def test_a_cut_answer_says_so(open_page):
    page = open_page()
    page.fill("#max_tokens", "2")
    exchange = ask(page, "It was")
    wait_for_end(page)
    expect(exchange.locator(".note")).to_have_text("Cut at 2 tokens, the maximum in the settings.")
    page.fill("#max_tokens", "1000000000")
    exchange = ask(page, "It was")
    wait_for_end(page)
    expect(exchange.locator(".note")).to_contain_text("more than this server has room for")
    write_answer(page, "Half an ans", last="")
    exchange = ask(page, "And now")
    expect(exchange.locator(".note")).to_have_text("The connection broke: this answer is not complete.")
    expect(exchange.locator(".answer")).to_have_text("Half an ans")


def test_a_server_that_dies_is_noticed(open_page):
    with serving() as url:
        page = open_page(url)
        without_end(page)
        exchange = ask(page, "The old man")
        expect(exchange.locator(".answer")).not_to_be_empty(timeout=MAX_WAIT)
    expect(exchange.locator(".note")).to_have_text("The connection broke: this answer is not complete.")
    expect(page.locator("#state")).to_contain_text("The server does not answer. This page goes on by itself.")
    expect(page.locator("#send")).to_be_disabled()


def test_the_page_waits_for_the_model_and_for_a_key(open_page):
    with serving("--api-key", KEY) as url:
        page = open_page(url, is_ready=False)
        expect(page.locator("#state")).to_contain_text("The model is being loaded. This page goes on by itself.")
        expect(page.locator("#send")).to_be_disabled()
        expect(page.locator("#key")).to_be_hidden()
        expect(page.locator("#key")).to_be_visible(timeout=MAX_WAIT)
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        expect(page.locator("#key-error")).to_have_text("The server refuses this key.")
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        expect(page.locator("#send")).to_be_enabled()
        expect(page.locator("#key")).to_be_hidden()
        page.fill("#max_tokens", "3")
        exchange = ask(page, "It was")
        expect(exchange.locator(".foot")).to_contain_text("3 tokens", timeout=MAX_WAIT)


ATTACKS = (
    "<script>window.harmed = 1</script>\n\n<img src=x onerror='window.harmed = 2'> <b>bold</b>\n\n"
    '[link](javascript:window.harmed=3) ![picture](https://example.org/a.png) [text](https://example.org/"onload=x)\n\n'
    '```html"><img src=x onerror=window.harmed=4>\n</code></pre><script>window.harmed = 5</script>\n```\n\n'
    "| <img src=x onerror=window.harmed=6> |\n|---|\n| `<svg onload=window.harmed=7>` |\n"
)


def test_html_in_an_answer_does_nothing(open_page):
    """Nor in a question, and after a reload; a picture of another site is a link, and is not loaded."""
    page = open_page()
    write_answer(page, ATTACKS)
    exchange = ask(page, ATTACKS)
    wait_for_end(page)
    for _ in range(2):
        expect(exchange.locator(".answer")).to_contain_text("<img src=x onerror='window.harmed = 2'> <b>bold</b>")
        assert page.locator("#talk :is(script, img, b, svg, iframe)").count() == 0
        assert page.evaluate("window.harmed") is None
        links = exchange.locator("a").evaluate_all("links => links.map(link => [link.origin, link.target, link.rel])")
        assert links
        assert all(link == ["https://example.org", "_blank", "noopener noreferrer"] for link in links)
        page.reload()


MARKDOWN = """# Head

A **bold** and *slanted* word, `code`, ~~gone~~.

1. First
   - inner
2. Second
   ```python
   if x < 1:
       pass
   ```

> Said

| a | b |
|---|---|
| 1 | 2 |
"""
RENDERED = (
    "<h3>Head</h3><p>A <strong>bold</strong> and <em>slanted</em> word, <code>code</code>, <del>gone</del>.</p>"
    '<ol start="1"><li><p>First</p><ul><li><p>inner</p></li></ul></li><li><p>Second</p><div class="code">'
    '<div class="code-head"><span>python</span><button class="plain " type="button">Copy</button></div>'
    "<pre><code>if x &lt; 1:\n    pass\n</code></pre></div></li></ol><blockquote><p>Said</p></blockquote>"
    '<div class="table"><table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table></div>'
)
UNSHOWN = r' data-range="[\d ]+"|<span class="accepted">|</span>(?!<button)'
LETTER_BY_LETTER = """text => {
    const place = document.createElement("div");
    for (let end = 1; end <= text.length; end++) renderAnswer(place, [{text: text.slice(0, end), kind: "accepted"}]);
    return place.innerHTML;
}"""


def test_markdown_is_rendered_as_it_comes(open_page):
    """The same in pieces and letter by letter, and every character has its kind."""
    page = open_page()
    write_answer(page, MARKDOWN)
    exchange = ask(page, "Show")
    wait_for_end(page)
    assert re.sub(UNSHOWN, "", exchange.locator(".answer").inner_html()) == RENDERED
    assert "".join(exchange.locator("p strong span.accepted").all_text_contents()) == "bold"
    assert re.sub(UNSHOWN, "", page.evaluate(LETTER_BY_LETTER, MARKDOWN)) == RENDERED


MATH = r"""Of \(x^2 \{1\}\) and $a_1 * b_1$, not $5 and $6.

\[
\frac{a}{b} \\ *c*
\]

| a | b | c |
|:--|:-:|--:|
| 1 | 2 | 3 |
"""
RENDER = """text => {
    const place = document.createElement("div");
    renderAnswer(place, [{text, kind: ""}]);
    return [place.textContent, [...place.querySelectorAll("td")].map(cell => cell.style.textAlign)];
}"""


def test_math_keeps_its_signs_and_columns_their_sides(open_page):
    text, sides = open_page().evaluate(RENDER, MATH)
    assert text.startswith(MATH.partition("\n\n|")[0].replace("\n\n", ""))
    assert sides == ["", "center", "right"]


SIGNS = ["`", "` ", "*", "**a ", "_a ", "~~a", "[", "[a](http://", "$a ", r"\(", r"\[", "> ", "- a\n", "- ", "|"]
SIGNS += ["a|b\n| -|"]


def test_runs_of_signs_take_no_time(open_page):
    """Of 4,000 backticks the page took 25 seconds, of more for ever."""
    page = open_page()
    for sign in SIGNS:
        assert page.evaluate(RENDER, sign * (50_000 // len(sign)))


def test_two_tabs_keep_their_talks_and_a_list_opens_them(open_page):
    page = open_page()
    write_answer(page, "First.")
    ask(page, "One")
    wait_for_end(page)
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("#send")).to_be_enabled(timeout=MAX_WAIT)
    expect(other.locator(".question")).to_have_text("One")  # the latest talk
    for tab, question in (page, "Two"), (other, "Three"):
        write_answer(tab, "More.")
        ask(tab, question)
        wait_for_end(tab)
        tab.reload()
        expect(tab.locator(".question")).to_have_text(["One", question])
    expect(other.locator("#talks option")).to_have_count(2)
    page.click("#new-talk")
    expect(page.locator(".exchange")).to_have_count(0)
    page.locator("#talks").select_option(index=1)
    expect(page.locator(".question")).to_have_count(2)


def test_copy(open_page):
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    write_answer(page, "```\nx = 1\n```\n")
    exchange = ask(page, "Show")
    wait_for_end(page)
    for place, text in (".code-head", "x = 1\n"), (".foot", "```\nx = 1\n```"):
        exchange.locator(place).get_by_role("button", name="Copy").click()
        expect(exchange.locator(place)).to_contain_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_the_page(open_page, scheme):
    """At least the 4.5 times that WCAG asks for, in both colour schemes."""
    page = open_page(color_scheme=scheme, **DESKTOP)
    colours = page.evaluate(
        "[document.body, ...document.querySelectorAll('#legend span')].map(element => getComputedStyle(element).color)"
    )
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert len(colours) == 5
    assert min(contrast(colour, background) for colour in colours) > 4.5


def contrast(first: str, second: str) -> float:
    """The contrast of two colours such as `rgb(1, 2, 3)`, by WCAG."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted([luminance(first), luminance(second)])
    return (bright + 0.05) / (dark + 0.05)
