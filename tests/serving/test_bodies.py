"""Bodies in every encoding, and those that are too long, too short, or not what they say."""

import asyncio
import gzip

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from flide_jax.serving import bodies
from flide_jax.serving.bodies import MOST_FRAMES, ClientLeftError, read_body, unpack
from flide_jax.serving.refusals import Refusal

LIMIT = 1_000
PACK = {"gzip": gzip.compress, "zstd": zstd.compress}


@given(body=st.binary(max_size=LIMIT), encoding=st.sampled_from([*PACK, "GZIP", " zstd "]))
def test_unpacks_what_was_packed(body, encoding):
    assert unpack(PACK[encoding.strip().lower()](body), encoding, limit=LIMIT) == body


@pytest.mark.parametrize("encoding", PACK)
def test_unpacks_several_frames(encoding):
    pack = PACK[encoding]
    assert unpack(pack(b"one") + pack(b"") + pack(b"two"), encoding, limit=LIMIT) == b"onetwo"


@pytest.mark.parametrize("encoding", PACK)
def test_many_frames_are_refused_before_they_are_unpacked(encoding, monkeypatch):
    """What follows a frame is copied for it: a hundred thousand of them would be copied for half a minute."""
    created: list[object] = []

    def counting(create):
        def created_and_counted(*arguments, **options):
            created.append(create)
            return create(*arguments, **options)

        return created_and_counted

    monkeypatch.setattr(bodies.zlib, "decompressobj", counting(bodies.zlib.decompressobj))
    monkeypatch.setattr(bodies.zstd, "ZstdDecompressor", counting(bodies.zstd.ZstdDecompressor))
    empty = PACK[encoding](b"")
    with pytest.raises(Refusal) as refused:
        unpack(empty * 100_000, encoding, limit=LIMIT)
    assert (refused.value.status, refused.value.detail[0]["loc"]) == (422, ["body"])
    assert len(created) == MOST_FRAMES
    assert unpack(empty * (MOST_FRAMES - 1) + PACK[encoding](b"{}"), encoding, limit=LIMIT) == b"{}"


def test_a_body_without_encoding_is_what_it_is():
    assert unpack(b"x", None, limit=LIMIT) == unpack(b"x", "identity", limit=LIMIT) == b"x"


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1, 200_000_000])
def test_a_body_unpacks_to_the_limit_at_most(encoding, size):
    packed = PACK[encoding](bytes(size))
    if size <= LIMIT:
        assert len(unpack(packed, encoding, limit=LIMIT)) == size
    else:
        with pytest.raises(Refusal) as refused:
            unpack(packed, encoding, limit=LIMIT)
        assert refused.value.status == 413


def test_a_frame_that_wants_much_memory_is_refused():
    packed = zstd.compress(b"x" * 100, options={zstd.CompressionParameter.window_log: 27})
    huge = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    streamed = huge.compress(b"x" * 100) + huge.flush()
    assert unpack(packed, "zstd", limit=LIMIT) == b"x" * 100  # it knows how small it is
    with pytest.raises(Refusal) as refused:
        unpack(streamed, "zstd", limit=LIMIT)
    assert refused.value.status == 422


@pytest.mark.parametrize("encoding", PACK)
def test_a_body_that_is_not_what_it_says_is_refused(encoding):
    packed = PACK[encoding](b"some text that is packed" * 5)
    for broken in (b"", b"{}", packed[:-1], packed[: len(packed) // 2], packed + b"{}"):
        with pytest.raises(Refusal) as refused:
            unpack(broken, encoding, limit=LIMIT)
        assert (refused.value.status, refused.value.detail[0]["loc"]) == (422, ["body"])


@pytest.mark.parametrize("encoding", ["br", "gzip, zstd", "", "zstd;q=1"])
def test_other_encodings_are_refused(encoding):
    if not encoding:
        assert unpack(b"x", encoding, limit=LIMIT) == b"x"
        return
    with pytest.raises(Refusal) as refused:
        unpack(b"x", encoding, limit=LIMIT)
    assert (refused.value.status, refused.value.headers) == (415, {"accept-encoding": "zstd, gzip"})


def read(*messages: dict, declared: str | None = None, take=lambda size: None) -> bytes:
    left = list(messages)

    async def receive() -> dict:
        return left.pop(0)

    return asyncio.run(read_body(receive, limit=LIMIT, declared=declared, take=take))


def part(body: bytes, *, more: bool) -> dict:
    return {"type": "http.request", "body": body, "more_body": more}


def test_reads_a_body_in_parts():
    taken: list[int] = []
    found = read(
        part(b"a", more=True), {"type": "http.request", "more_body": True}, part(b"bc", more=False), take=taken.append
    )
    assert found == b"abc" and sum(taken) == 3


def test_reads_no_more_than_the_limit():
    with pytest.raises(Refusal) as refused:
        read(part(bytes(LIMIT), more=True), part(b"x", more=True))
    assert refused.value.status == 413
    with pytest.raises(Refusal):
        read(declared=str(LIMIT + 1))
    assert len(read(part(bytes(LIMIT), more=False), declared=str(LIMIT))) == LIMIT


def test_a_body_that_ends_early_has_no_client_any_more():
    with pytest.raises(ClientLeftError):
        read(part(b"a", more=True), {"type": "http.disconnect"})
