"""The page for a person, in a browser where there is one, and as a text that asks nobody for anything.

`FLIDE_JAX_BROWSER` names a Chromium that has to be there: where it is not, the tests fail that are skipped otherwise.
"""

import html.parser
import json
import os
import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

from flide_jax.serving.keys import Keys
from flide_jax.serving.page import read_page
from tests.serving.live import Live, serving

FOUND = filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome")))
BROWSER = os.environ.get("FLIDE_JAX_BROWSER") or next(FOUND, None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def browsed(live) -> Iterator[tuple[Page, list[str]]]:
    """A page of a browser, and what went wrong in it: errors of scripts, and requests that its policy refused."""
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        yield page, wrong
        browser.close()


@needs_browser
def test_answers_come_as_bars_with_the_tree_and_its_cost(browsed, live):
    page, wrong = browsed
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.goto(live.url)
    assert page.text_content("#model") == "flide-demo, float32, ok"
    page.click("text=Ask >> nth=0")
    page.wait_for_selector(".bars")
    body = json.loads(page.text_content("#sent") or "")
    found = live.ask(body).json()
    bars = page.locator("#answers .bars")
    assert bars.count() == 3
    shown = page.locator("#answers .bars b").all_text_contents()
    urgent, action, mood = (found["answers"][name] for name in ("urgent", "action", "mood"))
    probabilities = [urgent["noul"], 1 - urgent["noul"], *action["probabilities"].values()]
    probabilities += mood["probabilities"].values()
    assert shown == [f"{p:.4f}" for p in probabilities]
    widths = page.eval_on_selector_all("#answers .fill", "fills => fills.map(fill => parseFloat(fill.style.width))")
    assert widths == pytest.approx([100 * p for p in probabilities], abs=0.01)
    costs, tree = found["x_costs"], page.locator("#costs li").all_text_contents()
    assert tree[1:] == [f"{name}, {tokens} tokens" for name, tokens in costs["question_tokens"].items()]
    assert tree[0].startswith(f"state, {costs['state_tokens']} tokens")
    forked, alone = re.findall(r"\d+", page.text_content("#costs p") or "")
    assert int(forked) == found["usage"]["input_tokens"] and int(alone) == int(forked) + 2 * costs["state_tokens"]
    assert page.locator("#costs .bars b").count() == 4
    assert {url.removeprefix(live.url) for url in sent} <= {"/", "/health", "/v1/systemone", "/favicon.ico"}
    assert not [line for line in wrong if "favicon" not in line and "404" not in line]


@needs_browser
def test_what_is_typed_is_what_is_asked(browsed, live):
    page, _ = browsed
    page.goto(live.url)
    for _ in range(3):
        page.click("text=Remove >> nth=0")
    page.check("#json")
    page.fill("#state", '{"2": [1.0, 12345678901234567890], "1": "<b>&"}')
    for number, (name, kind) in enumerate((("2", "choice"), ("1", "noul"), ("</script><b>x", "score"))):
        page.click("#add")
        card = page.locator("fieldset").nth(number)
        card.locator(".name").fill(name)
        card.locator(".kind").select_option(kind)
    page.locator(".options").nth(0).fill("10 = ten\n  2 = a = b\n\n1")
    page.locator(".no").nth(1).fill("never")
    page.locator(".levels").nth(2).fill("low\nhigh")
    page.locator(".instructions").nth(2).fill("<i>How?</i>")
    assert [page.locator(part).nth(0).is_visible() for part in (".options", ".levels", ".yes")] == [True, False, False]
    page.click("text=Ask >> nth=0")
    page.wait_for_selector("#answers .bars")
    sent = page.text_content("#sent") or ""
    assert '"state":{"2": [1.0, 12345678901234567890], "1": "<b>&"}' in sent
    in_order = json.loads(sent, object_pairs_hook=lambda pairs: [list(pair) for pair in pairs])
    assert in_order[1] == [
        "questions",
        [
            ["2", [["type", "choice"], ["criteria", [["10", "ten"], ["2", "a = b"], ["1", None]]]]],
            ["1", [["type", "noul"], ["criteria", [["false", "never"]]]]],
            ["</script><b>x", [["type", "score"], ["instructions", "<i>How?</i>"], ["criteria", ["low", "high"]]]],
        ],
    ]
    assert page.locator("#answers i, #answers b b, #costs i").count() == 0  # what is typed is never markup
    assert "</script><b>x" in (page.text_content("#answers") or "")


@needs_browser
def test_what_goes_wrong_is_shown(browsed, live):
    page, _ = browsed
    page.goto(live.url)
    page.check("#json")
    page.fill("#state", "{")
    page.click("text=Ask >> nth=0")
    page.wait_for_selector(".bad")
    assert (page.text_content(".bad") or "").startswith("422: body: not JSON")
    page.uncheck("#json")
    page.locator(".levels").nth(2).fill("")
    page.click("text=Ask >> nth=0")
    page.wait_for_selector(".bad >> text=body.questions.mood.criteria: 1 to 10 levels are allowed, got 0")


@needs_browser
def test_a_key_is_sent(browsed, tiny_engine):
    page, _ = browsed
    with serving(tiny_engine, keys=Keys({"right": "alice"})) as locked:
        page.goto(locked.url)
        page.click("text=Ask >> nth=0")
        page.wait_for_selector(".bad >> text=401: a key is needed")
        page.fill("#key", "right")
        page.click("text=Ask >> nth=0")
        page.wait_for_selector("#answers .bars")


def test_the_page_asks_nobody_else_for_anything(live: Live):
    found = live.client.get("/")
    assert (found.status_code, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = found.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert found.content == read_page()[0]

    opened: list[str] = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            opened.append(tag)
            names = {name for name, _ in attributes}
            assert not names & {"src", "href", "style", "action", "srcset", "onclick"}, (tag, names)

    Parser().feed(found.text)
    assert {"script", "style", "form", "template"} <= set(opened)
    assert "//" not in found.text.replace("// Written by hand", "") and "@import" not in found.text
