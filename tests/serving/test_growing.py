"""Growing states over HTTP: who resumes whose, and who goes without, with front ends in this process and in others."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from flide_jax.serving.admission import Limits
from flide_jax.serving.keys import Keys
from tests.serving.asked import CHOICE, NOUL, assert_close
from tests.serving.live import fronting, serving

# The name of one ends as that of the other begins.
KEYS = {"a-key": "ann", "b-key": "anna", "c-key": "carl"}
LIMITS = Limits(default_seconds=60.0)

type Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module", params=["here", "in processes"])
def url(growing_engine, request) -> Iterator[str]:
    if request.param == "here":
        with serving(growing_engine, keys=Keys(KEYS), limits=LIMITS) as live:
            yield live.url
    else:
        with fronting(growing_engine, processes=2, keys=Keys(KEYS), limits=LIMITS) as (found, _, _):
            yield found


@pytest.fixture
def ask(growing_engine, url) -> Ask:
    """ask(steps, key=..., **fields): the response to a state of so many steps; at first nothing is stored."""
    growing_engine.clear_checkpoints()

    def asked(steps: int, *, key: str = "a-key", **fields: object) -> httpx.Response:
        state = " ".join(f"Day {day}: the lamp was sent back, and {day} more came." for day in range(1, steps + 1))
        body = {"state": state, "questions": {"urgent": NOUL, "next": CHOICE}, **fields}
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(f"{url}/v1/systemone", content=json.dumps(body), headers=headers, timeout=60)

    return asked


def resumed(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    return response.json()["usage"].get("x_cached_tokens", 0)


def test_a_state_that_has_grown_is_resumed_and_answered_as_a_fresh_one(ask):
    assert resumed(ask(4)) == 0
    found, fresh = ask(5), ask(5, x_checkpoints=False)
    assert resumed(found) > 0 and resumed(fresh) == 0
    assert_close(found.json()["answers"], fresh.json()["answers"])


def test_who_goes_without_neither_resumes_nor_leaves_anything(ask, growing_engine):
    for steps in (4, 5):
        assert resumed(ask(steps, x_checkpoints=False)) == 0
    assert growing_engine.checkpoint_bytes == 0
    assert resumed(ask(6, x_checkpoints=True)) == 0
    assert resumed(ask(7, x_checkpoints=False)) == 0
    assert resumed(ask(7)) > 0


def test_salts_keep_the_states_of_one_client_apart(ask):
    assert resumed(ask(4, x_cache_salt="é one")) == 0
    assert resumed(ask(5)) == 0
    assert resumed(ask(5, x_cache_salt="two")) == 0
    assert resumed(ask(5, x_cache_salt="é one")) > 0


def test_no_salt_reaches_the_states_of_another_client(ask):
    assert resumed(ask(4, key="a-key", x_cache_salt="a")) == 0
    assert resumed(ask(4, key="a-key", x_cache_salt="one")) == 0
    for salt in ("one", '["ann", "one"]', "annone"):
        assert resumed(ask(5, key="c-key", x_cache_salt=salt)) == 0
    assert resumed(ask(5, key="b-key", x_cache_salt="")) == 0, "the name of this one is that one's name and salt"
    assert resumed(ask(5, key="a-key", x_cache_salt="one")) > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"x_checkpoints": 1},
        {"x_checkpoints": "false"},
        {"x_checkpoints": None},
        {"x_cache_salt": 7},
        {"x_cache_salt": None},
        {"x_cache_salt": ["a"]},
        {"x_cache_salt": "a" * 257},
        {"x_cache_salt": "\ud800"},
    ],
)
def test_anything_else_is_refused_with_its_place(ask, fields):
    found = ask(4, **fields)
    assert found.status_code == 422, found.text
    (detail,) = found.json()["detail"]
    assert detail["loc"] == ["body", *fields]


def test_each_request_of_a_batch_says_it_for_itself(ask, url):
    text = ask(4).request.content.decode()
    many = ", ".join([text[:-1] + f', "{name}": {value}}}' for name, value in FIELDS])
    headers = {"authorization": "Bearer a-key", "content-type": "application/json"}
    found = httpx.post(
        f"{url}/v1/systemone/batch", content=f'{{"requests": [{many}]}}', headers=headers, timeout=60
    ).json()["responses"]
    assert ["usage" in one for one in found] == [True, True, False]
    assert [one["usage"].get("x_cached_tokens", 0) > 0 for one in found[:2]] == [True, False]
    assert found[2]["error"]["detail"][0]["loc"] == ["body", "x_checkpoints"]


FIELDS = (("x_cache_salt", '""'), ("x_checkpoints", "false"), ("x_checkpoints", "0"))
