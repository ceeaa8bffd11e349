"""Fork attention: every implementation against Eq. 3 written out in numpy, and what must not influence a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import trees
from pallas_kernels.fork_attention.api import PAGE_ROWS, CachedKeys, KeySpans, fork_attention
from pallas_kernels.fork_attention.cases import AWKWARD, Case
from pallas_kernels.trees import Request
from tests.pallas_kernels import ANYWHERE
from tests.tolerances import OPERATOR, assert_close
from tests.trees import laid_out, plan_of

HEADS = {"one head": (1, 1), "grouped": (6, 2), "one key head": (4, 1)}


def operands(stream_rows: int, heads: tuple[int, int], dtype: str, *, seed: int = 0):
    rng = np.random.default_rng(seed)
    query_heads, key_heads = heads
    shapes = ((stream_rows, query_heads, 16), (stream_rows, key_heads, 16), (stream_rows, key_heads, 16))
    return tuple(jnp.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes)


def round_of_three(seed: int = 0):
    rng = np.random.default_rng(seed)
    return laid_out([plan_of(70, [5, 66], rng), plan_of(1, [1], rng), plan_of(130, [3, 64, 1], rng)])


def eq3(stream, query, key, value, scale: float) -> np.ndarray:
    """Row by row in float64 from requests, branches and token indices: knows nothing of spans."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    request = stream.piece_request[stream.token_piece]
    branch = np.where(stream.piece_parent < 0, -1, np.arange(stream.piece_parent.size))[stream.token_piece]
    group = query.shape[1] // key.shape[1]
    out = np.zeros((stream.tokens.size, *query.shape[1:]))
    for x in range(stream.tokens.size):
        sees = (request == request[x]) & ((branch == -1) | (branch == branch[x]))
        sees = np.flatnonzero(sees & (stream.token_index <= stream.token_index[x]))
        for head in range(query.shape[1]):
            scores = scale * key[sees, head // group] @ query[x, head]
            weights = np.exp(scores - scores.max())
            out[x, head] = weights @ value[sees, head // group] / weights.sum()
    return out


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("dtype", OPERATOR)
def test_equals_the_equation(implementation, heads, dtype):
    with jax.enable_x64(dtype == "float64"):
        stream, metadata = round_of_three()
        query, key, value = operands(metadata.tokens.size, heads, dtype)
        out = fork_attention(query, key, value, metadata.spans, scale=0.25, implementation=implementation)
        assert out.dtype == query.dtype
        rows = stream.tokens.size
        assert_close(out[:rows], eq3(stream, query, key, value, 0.25), OPERATOR[dtype])
        assert not np.asarray(out[rows:], np.float64).any(), "padding rows see nothing and must be zero"


ROWS = 150  # two blocks of rows, the second one short
compiled = jax.jit(fork_attention, static_argnames=("scale", "implementation"))


@st.composite
def any_spans(draw) -> KeySpans:
    """Two disjoint spans of any rows for each query row: empty ones, single rows, windows, later rows, everything."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    longest = draw(st.sampled_from([0, 1, 7, ROWS]))
    cuts = np.sort(rng.integers(0, ROWS + 1, (ROWS, 4)), axis=1).astype(np.int32)
    first, second = (cuts[:, :2], cuts[:, 2:]) if draw(st.booleans()) else (cuts[:, 2:], cuts[:, :2])
    first_end, second_end = (np.minimum(span[:, 1], span[:, 0] + np.int32(longest)) for span in (first, second))
    if draw(st.booleans()):  # the whole stream and nothing else
        everything = rng.integers(0, ROWS, 3)
        first[everything, 0], first_end[everything], second_end[everything] = 0, ROWS, second[everything, 0]
    return KeySpans(first[:, 0], first_end, second[:, 0], second_end)


@pytest.mark.parametrize("implementation", ANYWHERE)
@settings(max_examples=25)
@given(spans=any_spans())
def test_any_two_spans_are_a_mask(implementation, spans):
    """Not only causal ones: no implementation may compare a key with the query's own index."""
    mask = np.zeros((ROWS, ROWS), bool)
    for row in range(ROWS):
        mask[row, spans.state_begin[row] : spans.state_end[row]] = True
        mask[row, spans.own_begin[row] : spans.own_end[row]] = True
    with jax.enable_x64(True):
        query, key, value = operands(ROWS, (4, 2), "float64")
        out = compiled(query, key, value, spans, scale=0.25, implementation=implementation)
    key, value = (np.repeat(np.asarray(x), 2, axis=1) for x in (key, value))
    weights = np.exp(0.25 * np.einsum("nhd,thd->hnt", np.asarray(query), key)) * mask
    total = weights.sum(axis=2, keepdims=True)
    assert_close(out, np.einsum("hnt,thd->nhd", weights / np.where(total == 0, 1, total), value), OPERATOR["float64"])


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_rows_outside_the_spans_have_no_influence(implementation, poison):
    stream, metadata = round_of_three()
    query, key, value = operands(metadata.tokens.size, (6, 2), "float32")
    clean = fork_attention(query, key, value, metadata.spans, scale=0.25, implementation=implementation)
    request = stream.piece_request[stream.token_piece]
    others = np.concatenate([request != 0, np.ones(metadata.tokens.size - request.size, bool)])
    query, key, value = (jnp.where(others[:, None, None], poison, x) for x in (query, key, value))
    poisoned = fork_attention(query, key, value, metadata.spans, scale=0.25, implementation=implementation)
    np.testing.assert_array_equal(np.asarray(poisoned)[~others], np.asarray(clean)[~others])


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_a_visible_nan_is_not_hidden(implementation):
    stream, metadata = round_of_three()
    query, key, value = operands(metadata.tokens.size, (6, 2), "float32")
    value = value.at[69].set(jnp.nan)  # last row of the first state: its branches see it, no other state row does
    out = fork_attention(query, key, value, metadata.spans, scale=0.25, implementation=implementation)
    broken = np.isnan(np.asarray(out)).any(axis=(1, 2))[: stream.tokens.size]
    sees = (stream.piece_request[stream.token_piece] == 0) & (stream.token_index >= 69)
    np.testing.assert_array_equal(broken, sees)


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_some_rows_equal_the_same_rows_of_all(implementation):
    _, metadata = round_of_three()
    query, key, value = operands(metadata.tokens.size, (6, 2), "float32")
    rows = jnp.array([339, 0, 75, 75], jnp.int32)
    whole = fork_attention(query, key, value, metadata.spans, scale=0.25, implementation=implementation)
    spans = KeySpans(**{name: jnp.asarray(span) for name, span in vars(metadata.spans).items()}).of_rows(rows)
    some = fork_attention(query[rows], key, value, spans, scale=0.25, implementation=implementation)
    assert_close(some, whole[rows], OPERATOR["float32"])


RESUMED = {
    "in the first page": ([Request(40, [3, 20])], [1]),
    "a page": ([Request(90, [3, 20])], [64]),
    "more than a page": ([Request(150, [3, 20])], [65]),
    "nothing new": ([Request(128, [3, 20])], [128]),
    "some of a round": ([Request(210, [5]), Request(30, [4, 1]), Request(70, [9])], [200, 0, 63]),
}


def kept(requests, cached, key, value):
    """The cached rows of whole streams in pages in turned order, and of each resumed row its row in the whole stream.

    Rows of a page beyond the cached ones hold NaN keys and large values, pages of nobody hold nothing but NaN.
    """
    entries = [-(-length // PAGE_ROWS) for length in cached]
    pages = np.full((2, sum(entries) + 2, PAGE_ROWS, *key.shape[1:]), np.nan, key.dtype)
    table = np.arange(sum(entries), 0, -1)  # page 0 and the last one are nobody's
    pages[1, table] = 1e30
    case = Case([Request(whole.state - length, whole.branches) for whole, length in zip(requests, cached, strict=True)])
    begin, end = np.zeros((2, case.rows), np.int32)
    rows = np.full(case.rows, -1)
    for piece, whole in zip(trees.pieces(case.requests), trees.pieces(requests), strict=True):
        first_entry, skipped = sum(entries[: piece.slot]), cached[piece.slot] if piece.parent is None else 0
        here = slice(piece.begin, piece.begin + piece.length)
        rows[here] = whole.begin + skipped + np.arange(piece.length)
        begin[here] = first_entry * PAGE_ROWS
        end[here] = begin[here] + cached[piece.slot]
        for row in range(skipped):
            place = table[first_entry + row // PAGE_ROWS], row % PAGE_ROWS
            pages[0][place], pages[1][place] = key[whole.begin + row], value[whole.begin + row]
    return CachedKeys(*pages, np.append(table, 0).astype(np.int32), begin, end), rows, case.spans()


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("name", RESUMED)
def test_resumed_rows_equal_those_of_a_whole_state(implementation, name):
    requests, lengths = RESUMED[name]
    with jax.enable_x64(True):
        query, key, value = operands(trees.stream_rows(requests), (6, 2), "float64")
        whole = trees.key_spans(requests, query.shape[0])
        expected = fork_attention(query, key, value, whole, scale=0.25, implementation="reference")
        cached, rows, spans = kept(requests, lengths, np.asarray(key), np.asarray(value))
        mine = (
            jnp.asarray(np.where((rows >= 0)[:, None, None], x[rows], np.nan))
            for x in map(np.asarray, (query, key, value))
        )
        out = fork_attention(*mine, spans, cached=cached, scale=0.25, implementation=implementation)
    assert_close(out[rows >= 0], expected[rows[rows >= 0]], OPERATOR["float64"])
    assert not np.asarray(out[rows < 0]).any(), "padding rows see nothing and must be zero"


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_some_rows_with_cached_keys_equal_the_same_rows_of_all(implementation):
    case = AWKWARD["cached and not"]
    query, key, value, *pages = case.operands(jax.random.key(0), jnp.float32)
    options = {"scale": 0.25, "implementation": implementation}
    cached = jax.tree.map(jnp.asarray, case.cached_keys(*pages))
    spans = jax.tree.map(jnp.asarray, case.spans())
    whole = fork_attention(query, key, value, spans, cached=cached, **options)
    rows = jnp.array([20, 0, 15, 15], jnp.int32)
    some = fork_attention(query[rows], key, value, spans.of_rows(rows), cached=cached.of_rows(rows), **options)
    assert_close(some, whole[rows], OPERATOR["float32"])


def test_gradient_reaches_cached_keys_and_is_that_of_the_reference():
    case = AWKWARD["cached and not"]
    with jax.enable_x64(True):
        arguments = case.operands(jax.random.key(0), jnp.float64)

        def loss(implementation):
            def of(arguments):
                query, key, value, *pages = arguments
                cached, spans = case.cached_keys(*pages), case.spans()
                options = {"cached": cached, "scale": 0.25, "implementation": implementation}
                return jnp.sum(jnp.sin(fork_attention(query, key, value, spans, **options)))

            return of

        found, expected = jax.grad(loss("xla"))(arguments), jax.grad(loss("reference"))(arguments)
        for a, b in zip(found, expected, strict=True):
            assert np.asarray(b).any()
            assert_close(a, b, 1e-12)


def test_gradient_flows_and_is_that_of_the_reference():
    with jax.enable_x64(True):
        _, metadata = round_of_three()
        arguments = operands(metadata.tokens.size, (6, 2), "float64")

        def loss(implementation):
            def of(arguments):
                out = fork_attention(*arguments, metadata.spans, scale=0.25, implementation=implementation)
                return jnp.sum(jnp.sin(out))

            return of

        found, expected = jax.grad(loss("xla"))(arguments), jax.grad(loss("reference"))(arguments)
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, 1e-12)


def test_refuses_heads_that_do_not_group_and_unknown_names():
    _, metadata = round_of_three()
    query, key, value = operands(metadata.tokens.size, (6, 2), "float32")
    with pytest.raises(ValueError, match="5 query heads are not a multiple of 2 key heads"):
        fork_attention(query[:, :5], key, value, metadata.spans, scale=1.0)
    with pytest.raises(ValueError, match="6 query heads are not a multiple of 0 key heads"):
        fork_attention(query, key[:, :0], value[:, :0], metadata.spans, scale=1.0)
    with pytest.raises(ValueError, match="implementation must be one of reference, xla, pallas"):
        fork_attention(query, key, value, metadata.spans, scale=1.0, implementation="cuda")


def test_no_query_row_at_all():
    _, metadata = round_of_three()
    query, key, value = operands(metadata.tokens.size, (6, 2), "float32")
    none = jax.tree.map(lambda column: column[:0], metadata.spans)
    assert fork_attention(query[:0], key, value, none, scale=1.0).shape == (0, *query.shape[1:])
