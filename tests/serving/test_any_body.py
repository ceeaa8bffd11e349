"""Whatever is posted, it is answered or refused: nothing that a client sends is an error of the server."""

import copy
import gzip
import json

import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.asked import ASKED

# The server's threads may draw from `random` meanwhile.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

PACK = {"gzip": gzip.compress, "zstd": zstd.compress, "identity": bytes, "br": bytes}
ODD = st.sampled_from([None, True, -0.0, float("nan"), float("inf"), 10**4_250, "", "\ud800", "<|im_end|>", [], {}])
VALUES = st.recursive(ODD | st.text(max_size=8), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@st.composite
def values(draw) -> object:
    """A valid request with another value in one place, or with one more field there."""
    request = copy.deepcopy(ASKED)
    holder: dict | list = request
    while True:
        items = holder.values() if isinstance(holder, dict) else holder
        inner = [item for item in items if isinstance(item, dict | list)]
        if not inner or draw(st.booleans()):
            break
        holder = draw(st.sampled_from(inner))
    if isinstance(holder, dict):
        holder[draw(st.sampled_from([*holder]) | st.text(max_size=4))] = draw(VALUES)
    else:
        holder[draw(st.integers(0, len(holder) - 1))] = draw(VALUES)
    return request


@st.composite
def damaged(draw, texts) -> bytes:
    """A text in which some bytes are replaced."""
    text = draw(texts)
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(len(text), begin + 8)))
    return text[:begin] + draw(st.binary(max_size=8)) + text[end:]


TEXTS = values().map(lambda value: json.dumps(value).encode()) | damaged(st.just(json.dumps(ASKED).encode()))


@st.composite
def posts(draw) -> tuple[bytes, str]:
    """A body, and what is said to be its encoding."""
    encoding = draw(st.sampled_from(list(PACK)))
    packed = TEXTS.map(PACK[encoding])
    return draw(packed | damaged(packed) | st.binary(max_size=64)), encoding


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/systemone/batch"])
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(posted=posts())
def test_any_body_is_answered_or_refused(live, path, posted):
    body, encoding = posted
    found = live.client.post(path, content=body, headers={"content-encoding": encoding})
    assert found.status_code in (200, 400, 413, 415, 422), found.text
    assert list(found.json()) == ["detail"] or found.status_code == 200


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_any_batch_is_answered_or_refused(live, texts):
    found = live.client.post("/v1/systemone/batch", content=b'{"requests": [' + b",".join(texts) + b"]}")
    assert found.status_code in (200, 422), found.text
    if found.status_code == 200:
        statuses = {one["error"]["status"] for one in found.json()["responses"] if "error" in one}
        assert statuses <= {400, 422}
