import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flide_jax.request import MAX_INTEGER_DIGITS, Request, RequestError, YesNo
from flide_jax.serving.strict_json import parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_reads_every_json_value(value):
    assert parse(json.dumps(value).encode()) == value


def test_reads_text_in_utf8_with_or_without_a_byte_order_mark():
    text = '{"\u2028": "é 🙂 \u0085"}'
    assert parse(text.encode()) == parse(text.encode("utf-8-sig")) == {"\u2028": "é 🙂 \u0085"}


@pytest.mark.parametrize(
    ("text", "location", "rule"),
    [
        (b'{"a": "\xff"}', (), "not UTF-8: byte 0xff at offset 7"),
        ('{"a": 1}'.encode("utf-16"), (), "not UTF-8: byte 0xff at offset 0"),
        (b"", (), "empty"),
        (b" \n ", (), "empty"),
        (b'{"a": 1', (), "not JSON: .* line 1 column 8"),
        (b'{"a": 1} {}', (), "not JSON: Extra data"),
        (b'{"a": 1, "a": 1}', ("a",), "twice"),
        (b'{"a": [0, {"b": {"c": 1, "d": 2, "c": 3}}]}', ("a", 1, "b", "c"), "twice"),
        (b'{"a": {"b": 1, "b": 2}, "a": 3}', ("a",), "twice"),
        (b'{"b": 0, "a": [1, NaN]}', ("a", 1), "NaN"),
        (b'{"a": -Infinity}', ("a",), "-Infinity"),
        (b'{"a": [0, 1e999]}', ("a", 1), "no finite float64"),
        (b'{"a": -1.5E+400}', ("a",), "no finite float64"),
        (b"1e999", (), "no finite float64"),
        (b'{"a": [1, {"b": NaN}], "c": {"d": 1, "d": 2}}', ("a", 1, "b"), "NaN"),
        (b'{"a": [0, -' + b"9" * 5000 + b"]}", ("a", 1), "more than 4,200 digits is not allowed, got 5,000"),
        (b'{"a": NaN, "b": ' + b"9" * 5000 + b"}", ("a",), "NaN"),
        (b"[" * 200_000 + b"]" * 200_000, (), "nested too deep"),
        (b'{"a":' * 200_000, (), "nested too deep"),
    ],
)
def test_refuses_what_is_not_json_and_says_where(text, location, rule):
    with pytest.raises(RequestError, match=rule) as refused:
        parse(text)
    assert refused.value.location == location


def test_a_repeated_key_is_found_below_any_nesting_that_can_be_read():
    with pytest.raises(RequestError, match="twice") as refused:
        parse(b"[" * 900 + b'{"k": 1, "k": 2}' + b"]" * 900)
    assert refused.value.location == (0,) * 900 + ("k",)


def test_long_integers_are_read_up_to_the_limit():
    """The limit of the reader is that of a request's content, with a sign or without."""
    longest = 10**MAX_INTEGER_DIGITS - 1
    for value in (longest, -longest):
        assert parse(str(value).encode()) == value
        Request([value], {"q": YesNo()})
    for value in (longest + 1, -longest - 1):
        with pytest.raises(RequestError, match="4,200 digits"):
            parse(str(value).encode())
        with pytest.raises(RequestError, match="4,200 digits"):
            Request([value], {"q": YesNo()})
