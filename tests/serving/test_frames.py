"""Messages between processes: they come as they were sent, or not at all."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from flide_jax.serving import frames

ARRAYS = st.lists(
    of_numpy.arrays(
        st.sampled_from([np.int32, np.float32, np.float64]), of_numpy.array_shapes(min_dims=1, max_dims=2, min_side=0)
    ),
    max_size=5,
)
FIELDS = st.dictionaries(
    st.text().filter(lambda key: key not in ("kind", "arrays")), st.integers() | st.text() | st.none()
)


def received(*parts: bytes) -> list[frames.Message]:
    async def read_all() -> list[frames.Message]:
        reader = asyncio.StreamReader()
        for part in parts:
            reader.feed_data(part)
        reader.feed_eof()
        found = []
        while (message := await frames.read(reader)) is not None:
            found.append(message)
        return found

    return asyncio.run(read_all())


@given(arrays=ARRAYS, fields=FIELDS)
def test_messages_come_as_they_were_sent(arrays, fields):
    packed = frames.pack("first", arrays, **{f"x{key}": value for key, value in fields.items()})
    first, second = received(packed, frames.pack("second"))
    assert (first.kind, second.kind) == ("first", "second")
    assert first.fields == {f"x{key}": value for key, value in fields.items()}
    assert len(first.arrays) == len(arrays)
    for found, sent in zip(first.arrays, arrays, strict=True):
        assert found.dtype == sent.dtype and found.shape == sent.shape
        np.testing.assert_array_equal(found.view(np.uint8), sent.view(np.uint8))


@pytest.mark.parametrize("kept", [0, 3, 8, 20])
def test_a_message_that_is_cut_off_never_came(kept):
    packed = frames.pack("cut", [np.arange(100, dtype=np.int32)])
    assert [message.kind for message in received(frames.pack("whole"), packed[:kept])] == ["whole"]
