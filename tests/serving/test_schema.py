"""What the server says of itself, and requests made from it: what fits is answered, what does not is refused."""

import copy
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import negative_data_rejection

from flide_jax.engine.executables import Started
from flide_jax.prompts.plan import Plan
from flide_jax.serving.openapi import NOT_BLANK
from tests.serving.asked import ASKED, NOUL, asked
from tests.serving.live import Live, serving
from tests.serving.test_app import INVALID

FOR_CHECKPOINTS = {"x_checkpoints": False, "x_cache_salt": "s" * 256}
ROUTES = (("/v1/systemone", "POST"), ("/v1/systemone/batch", "POST"), ("/v1/models", "GET"), ("/health", "GET"))


@pytest.fixture(scope="module")
def live(tiny_engine) -> Iterator[Live]:
    """A server whose device gives every option the same, at once: what is made up may be long."""
    instant = copy.copy(tiny_engine)
    labels = len(tiny_engine.prompt_format.labels)

    def start(plans: Sequence[Plan]) -> Started:
        logits = [np.zeros((plan.read_branches.size, labels), np.float32) for plan in plans]
        return Started([0] * len(plans), lambda: logits)

    instant.start = start  # type: ignore[method-assign]
    instant.prepare = lambda plan: None  # type: ignore[method-assign]
    with serving(instant) as found:
        yield found


@pytest.fixture(scope="module")
def described(live) -> schemathesis.BaseSchema:
    """The server's own description of its routes."""
    return schemathesis.openapi.from_url(f"{live.url}/openapi.json")


# The generator itself draws from `random` in places, which hypothesis has warned of since.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_requests_made_from_the_description_are_answered_as_it_says(described, path, method, mode):
    operation = described[path][method]
    if mode is GenerationMode.NEGATIVE and method == "GET":
        return  # there is nothing to get wrong

    # What is wrong with one request of a batch is said in its place, among the answers to the others.
    excluded = [negative_data_rejection] if path.endswith("batch") else []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    def answered(case: schemathesis.Case) -> None:
        case.call_and_validate(excluded_checks=excluded, timeout=60)

    answered()


def test_blank_is_what_python_takes_for_it():
    not_blank = re.compile(NOT_BLANK)
    characters = [chr(code) for code in range(0x11_0000)]
    assert all((not_blank.match(character) is None) == character.isspace() for character in characters)


def schema_of(live: Live, name: str) -> Any:
    about = live.client.get("/openapi.json").json()
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": about["components"]})


def test_the_description_takes_what_the_server_takes_and_nothing_else(live):
    requests = schema_of(live, "Request")
    for good in (ASKED, asked(NOUL), asked(NOUL, model="flide-demo", seed=1), asked(NOUL, **FOR_CHECKPOINTS)):
        requests.validate(good)
    # What JSON Schema has no words for: text that is no JSON, keys that stand twice, numbers that are none.
    beyond = {name for name, (body, _) in INVALID.items() if isinstance(body, bytes)}
    for name in INVALID.keys() - beyond:
        assert not requests.is_valid(INVALID[name][0]), name


def test_responses_are_those_of_the_description(live):
    schema_of(live, "Response").validate(live.ask(ASKED | {"x_costs": True}).json())
    schema_of(live, "Invalid").validate(live.ask(asked({})).json())
    schema_of(live, "Error").validate(live.ask(asked(NOUL, model="gpt")).json())
    batch = live.client.post("/v1/systemone/batch", json={"requests": [ASKED, asked({}), asked(NOUL, model="gpt")]})
    schema_of(live, "BatchResponse").validate(batch.json())
    assert json.loads(live.client.get("/openapi.json").text)["info"]["version"] == "1.2.3"
