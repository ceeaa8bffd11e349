"""The public suite for servers of System One, and the official client, against a server of the model that ships. Where
it asks for no key, which is the same but for a header, it is one of a tiny model."""

import json
from collections.abc import Iterator

import pytest
from jevcompat import report, runner
from typesafe_sdk import Choice, Noul, RetryPolicy, Score, TypeSafeBadRequestError, TypeSafeClient
from typesafe_sdk import TypeSafeAuthenticationError as AuthenticationError
from typesafe_sdk import TypeSafeUnprocessableEntityError as UnprocessableEntityError

from flide_jax.serving.admission import Limits
from flide_jax.serving.keys import Keys
from tests.serving.live import Live, serving

KEY = "a-key-of-alice"
ONLY_WITH_A_KEY = {"auth.bearer", "auth.missing", "auth.invalid"}
ONLY_WITHOUT = {"auth.ignored-when-off"}


@pytest.fixture(scope="module")
def with_key(demo_engine) -> Iterator[Live]:
    """A server that asks for a key."""
    with serving(demo_engine, keys=Keys({KEY: "alice"}), limits=Limits(default_seconds=60.0)) as live:
        yield live


@pytest.mark.parametrize("key", [None, KEY], ids=["without a key", "with a key"])
def test_every_requirement_that_applies_is_met(key, request):
    live = request.getfixturevalue("with_key" if key else "live")
    found = json.loads(report.to_json(runner.run(live.url, key=key)))
    assert (found["aborted"], found["case_errors"], found["inconclusive"]) == (None, [], [])
    # What the suite leaves out, it leaves out without a word in its exit status.
    skipped = {one["id"] for one in found["results"] if one["status"] == "skip"}
    assert skipped == (ONLY_WITHOUT if key else ONLY_WITH_A_KEY)
    failed = {one["id"]: one["findings"] for one in found["results"] if one["status"] == "fail"}
    assert not failed
    assert found["summary"]["verdict"] == "conformant"
    assert {one["level"] for one in found["results"] if one["status"] == "pass"} == {"MUST", "SHOULD"}


@pytest.mark.parametrize("compression", ["zstd", False])
def test_the_official_client_gets_the_answers_of_the_server(with_key, compression):
    state = "The order came with a cracked screen. " * 50  # long enough to be compressed
    criteria = {"refund": "refund the order", "réponse\u2028🎯": None}
    questions = {
        "ur gent": Noul(instructions="Is it urgent?"),
        "next": Choice(instructions="What next?", criteria=criteria),
        "mood": Score(instructions={"scale": "anger"}, criteria=["calm", {"label": "angry"}]),
    }
    with TypeSafeClient(api_key=KEY, base_url=with_key.url, compression=compression, timeout=60) as client:
        assert [model.name for model in client.models.list().models] == ["flide-demo"]
        found = client.system_one(state=state, questions=questions)
    wire = {
        "ur gent": {"type": "noul", "instructions": "Is it urgent?"},
        "next": {"type": "choice", "instructions": "What next?", "criteria": criteria},
        "mood": {"type": "score", "instructions": {"scale": "anger"}, "criteria": ["calm", {"label": "angry"}]},
    }
    expected = with_key.ask({"state": state, "questions": wire}, authorization=f"Bearer {KEY}").json()
    assert found.nouls["ur gent"].noul == expected["answers"]["ur gent"]["noul"]
    assert found.choices["next"].probabilities == expected["answers"]["next"]["probabilities"]
    assert list(found.choices["next"].probabilities) == list(criteria)
    assert found.scores["mood"].score == expected["answers"]["mood"]["score"]
    assert (found.model, found.usage.input_tokens) == ("flide-demo", expected["usage"]["input_tokens"])


def test_the_official_client_understands_the_errors(with_key):
    once = RetryPolicy(max_retries=0)
    question = {"q": Noul(instructions="?")}
    with TypeSafeClient(api_key=KEY, base_url=with_key.url, retry=once) as client:
        with pytest.raises(TypeSafeBadRequestError, match="Unknown model: gpt"):
            client.system_one(state="", questions=question, model="gpt")
        with pytest.raises(UnprocessableEntityError, match="1 to 10 levels"):
            client.system_one(state="", questions={"q": Score(criteria=["x"] * 11)})
    with (
        TypeSafeClient(api_key="wrong", base_url=with_key.url, retry=once) as client,
        pytest.raises(AuthenticationError, match="the key is not valid"),
    ):
        client.system_one(state="", questions=question)
