"""What the ops refuse: one line that names the op and the operand, before any implementation is chosen."""

import copy
import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels import CachedKeys, ConvWeights, Segments, trees
from pallas_kernels.trees import Request

REQUESTS = [Request(66, [3, 1])]
ROWS = trees.stream_rows(REQUESTS)  # 128
SPANS, SEGMENTS = trees.key_spans(REQUESTS, ROWS), trees.segments(REQUESTS, ROWS, chunks=5)  # one chunk is not used
CHUNK_ROWS = 5 * 64
PREDECESSORS = trees.predecessors(REQUESTS, ROWS)


def ones(*shape):
    return jnp.ones(shape, jnp.float32)


def cached():
    """Pages 1 and 2 of three, of which every row sees 70 rows."""
    pages = ones(3, 64, 2, 8)
    return CachedKeys(
        pages, pages, np.array([1, 2, 0], np.int32), np.zeros(ROWS, np.int32), np.full(ROWS, 70, np.int32)
    )


# What each op accepts: two key heads of 8 dims, four query or value heads; segments and spans on the host.
ACCEPTED = {
    "fork_attention": lambda: {
        "query": ones(ROWS, 4, 8),
        "key": ones(ROWS, 2, 8),
        "value": ones(ROWS, 2, 8),
        "spans": SPANS,
        "cached": cached(),
        "scale": 1.0,
    },
    "segmented_gdn": lambda: {
        "query": ones(CHUNK_ROWS, 2, 8),
        "key": ones(CHUNK_ROWS, 2, 8),
        "value": ones(CHUNK_ROWS, 4, 16),
        "log_decay": ones(CHUNK_ROWS, 4),
        "write_strength": ones(CHUNK_ROWS, 4),
        "states": ones(1, 4, 16, 8),
        "segments": SEGMENTS,
        "pool": ones(2, 4, 16, 8),
        "scale": 1.0,
    },
    "segmented_conv": lambda: {
        "mixed": ones(ROWS, 100),
        "write_logit": ones(ROWS, 4),
        "decay_input": ones(ROWS, 4),
        "weights": ConvWeights(ones(4, 96), ones(4), ones(4)),
        "predecessors": jnp.asarray(PREDECESSORS),
        "segments": SEGMENTS,
        "windows": ones(2, 3, 96),
        "key_heads": 2,
        "key_dim": 8,
    },
    "gated_norm": lambda: {
        "out": ones(CHUNK_ROWS, 4, 16),
        "projected": ones(ROWS, 70),
        "weight": ones(16),
        "segments": SEGMENTS,
        "gate_begin": 4,
        "rows": jnp.array([68, 69], jnp.int32),
        "epsilon": 1e-6,
    },
    "rms_norm": lambda: {"x": ones(3, 8), "weight": ones(8), "epsilon": 1e-6},
    "rotary_norm": lambda: {
        "projected": ones(3, 40),
        "weight": ones(8),
        "cos": ones(3, 2),
        "sin": ones(3, 2),
        "heads": 2,
        "begin": 4,
        "value_begin": 20,
        "epsilon": 1e-6,
    },
    "matmul": lambda: {"x": ones(3, 8), "weight": ones(6, 8), "residual": ones(3, 6)},
}


def bfloat16(x):
    return x.astype(jnp.bfloat16)


def integers(x):
    return x.astype(np.int32)


def words(x):
    return np.asarray(x, np.int64)


def fewer(x):
    return x[1:]


def narrower(x):
    return x[..., 1:]


def stacked(x):
    return x[None]


def is_now(value):
    return lambda _: value


def holding(value, place):
    """The same on the host, with another value at one place."""

    def changed(x):
        x = np.array(x)
        x[place] = value
        return x

    return changed


# Of each op: the operand, what is done to it, and what is said of it.
REFUSED = {
    "fork_attention": [
        ("query", integers, "query must be float[N H D], got int32[128, 4, 8]"),
        ("query", stacked, "query must be float[N H D], got float32[1, 128, 4, 8]"),
        ("query", fewer, "spans.state_begin must be int32[N] with N = 127, got int32[128]"),
        ("key", bfloat16, "key must be float32[T KV D] with D = 8, got bfloat16[128, 2, 8]"),
        ("key", narrower, "key must be float32[T KV D] with D = 8, got float32[128, 2, 7]"),
        ("value", fewer, "value must be float32[T KV D] with T = 128, KV = 2, D = 8, got float32[127, 2, 8]"),
        ("value", bfloat16, "value must be float32[T KV D] with T = 128, KV = 2, D = 8, got bfloat16[128, 2, 8]"),
        ("value", list, "value must be float32[T KV D] with T = 128, KV = 2, D = 8, got list[]"),
        ("spans", is_now(None), "spans.state_begin must be int32[N] with N = 128, got NoneType[]"),
        ("spans.own_begin", fewer, "spans.own_begin must be int32[N] with N = 128, got int32[127]"),
        ("spans.own_end", words, "spans.own_end must be int32[N] with N = 128, got int64[128]"),
        ("spans.state_begin", holding(-1, 5), "spans.state_begin[5] must be in 0..128, got -1"),
        ("spans.state_end", holding(129, 5), "spans.state_end[5] must be in 0..128, got 129"),
        ("spans.own_begin", holding(129, 127), "spans.own_begin[127] must be in 0..128, got 129"),
        ("spans.own_end", holding(65, 66), "spans.own_end[66] must be in 66..128, got 65"),
        (
            "cached.key",
            lambda x: x[:, 1:],
            "cached.key must be float32[pages page_rows KV D] with page_rows = 64, KV = 2, D = 8, "
            "got float32[3, 63, 2, 8]",
        ),
        (
            "cached.value",
            fewer,
            "cached.value must be float32[pages page_rows KV D] with pages = 3, page_rows = 64, KV = 2, D = 8, "
            "got float32[2, 64, 2, 8]",
        ),
        (
            "cached.value",
            bfloat16,
            "cached.value must be float32[pages page_rows KV D] with pages = 3, page_rows = 64, KV = 2, D = 8, "
            "got bfloat16[3, 64, 2, 8]",
        ),
        ("cached.begin", fewer, "cached.begin must be int32[N] with N = 128, got int32[127]"),
        ("cached.end", fewer, "cached.end must be int32[N] with N = 128, got int32[127]"),
        ("cached.table", stacked, "cached.table must be int32[entries], got int32[1, 3]"),
        ("cached.table", holding(3, 2), "cached.table[2] must be in 0..2, got 3"),
        ("cached.table", holding(-1, 0), "cached.table[0] must be in 0..2, got -1"),
        ("cached.begin", holding(71, 9), "cached.end[9] must be in 71..192, got 70"),
        ("cached.begin", holding(-1, 9), "cached.begin[9] must be in 0..192, got -1"),
        ("cached.end", holding(193, 9), "cached.end[9] must be in 0..192, got 193"),
    ],
    "segmented_gdn": [
        ("query", integers, "query must be float[chunk_rows nk dk], got int32[320, 2, 8]"),
        (
            "query",
            narrower,
            "key must be float32[chunk_rows nk dk] with chunk_rows = 320, nk = 2, dk = 7, got float32[320, 2, 8]",
        ),
        (
            "key",
            bfloat16,
            "key must be float32[chunk_rows nk dk] with chunk_rows = 320, nk = 2, dk = 8, got bfloat16[320, 2, 8]",
        ),
        ("value", bfloat16, "value must be float32[chunk_rows nv dv] with chunk_rows = 320, got bfloat16[320, 4, 16]"),
        ("value", fewer, "value must be float32[chunk_rows nv dv] with chunk_rows = 320, got float32[319, 4, 16]"),
        (
            "log_decay",
            bfloat16,
            "log_decay must be float32[chunk_rows nv] with chunk_rows = 320, nv = 4, got bfloat16[320, 4]",
        ),
        (
            "write_strength",
            narrower,
            "write_strength must be float32[chunk_rows nv] with chunk_rows = 320, nv = 4, got float32[320, 3]",
        ),
        (
            "states",
            bfloat16,
            "states must be float32[slots nv dv dk] with nv = 4, dv = 16, dk = 8, got bfloat16[1, 4, 16, 8]",
        ),
        (
            "states",
            lambda x: x.mT,
            "states must be float32[slots nv dv dk] with nv = 4, dv = 16, dk = 8, got float32[1, 4, 8, 16]",
        ),
        ("states", lambda x: x.repeat(2, 0), "states of 2 slots, segments of 1"),
        (
            "pool",
            bfloat16,
            "pool must be float32[pool_slots nv dv dk] with nv = 4, dv = 16, dk = 8, got bfloat16[2, 4, 16, 8]",
        ),
        ("segments.length", fewer, "segments.length must be int32[G] with G = 3, got int32[2]"),
        ("segments.chunk_begin", fewer, "segments.chunk_begin must be int32[C] with C = 5, got int32[4]"),
        ("segments.chunk_row", words, "segments.chunk_row must be int32[T], got int64[128]"),
        ("segments.parts", is_now(3), "segments of 2 levels in up to 3 parts"),
        ("segments.levels", is_now(0), "segments of 0 levels in up to 1 parts"),
        ("segments.length", holding(-1, 1), "segments.length[1] must be in 0..128, got -1"),
        ("segments.first_chunk", holding(4, 0), "segments.first_chunk[0] must be in 0..3, got 4"),
        ("segments.chunk_segment", holding(3, 4), "segments.chunk_segment[4] must be in 0..2, got 3"),
        ("segments.chunk_length", holding(65, 1), "segments.chunk_length[1] must be in 0..64, got 65"),
        ("segments.chunk_begin", holding(65, 0), "segments.chunk_begin[0] must be in 0..64, got 65"),
        ("segments.chunk_row", holding(320, 7), "segments.chunk_row[7] must be in 0..319, got 320"),
        ("segments.initial_slot", holding(3, 1), "segments.initial_slot[1] must be in -1..2, got 3"),
        ("segments.final_slot", holding(-2, 1), "segments.final_slot[1] must be in -1..2, got -2"),
    ],
    "segmented_conv": [
        ("mixed", integers, "mixed must be float[T width], got int32[128, 100]"),
        ("write_logit", fewer, "write_logit must be float[T nv] with T = 128, got float32[127, 4]"),
        (
            "write_logit",
            lambda x: x[:, :0],
            "decay_input must be float[T nv] with T = 128, nv = 0, got float32[128, 4]",
        ),
        ("decay_input", narrower, "decay_input must be float[T nv] with T = 128, nv = 4, got float32[128, 3]"),
        ("decay_input", integers, "decay_input must be float[T nv] with T = 128, nv = 4, got int32[128, 4]"),
        ("weights.taps", integers, "weights.taps must be float[taps channels], got int32[4, 96]"),
        ("weights.taps", fewer, "3 predecessors of a row for 3 taps"),
        ("weights.log_decay_rate", fewer, "weights.log_decay_rate must be float[nv] with nv = 4, got float32[3]"),
        ("weights.decay_bias", integers, "weights.decay_bias must be float[nv] with nv = 4, got int32[4]"),
        ("predecessors", fewer, "predecessors must be int32[T earlier] with T = 128, got int32[127, 3]"),
        ("predecessors", words, "predecessors must be int32[T earlier] with T = 128, got int64[128, 3]"),
        ("predecessors", holding(134, (2, 1)), "predecessors[2, 1] must be in -1..133, got 134"),
        ("predecessors", holding(-2, (0, 0)), "predecessors[0, 0] must be in -1..133, got -2"),
        ("segments.chunk_row", fewer, "segments.chunk_row must be int32[T] with T = 128, got int32[127]"),
        ("segments.chunk_length", holding(-1, 1), "segments.chunk_length[1] must be in 0..64, got -1"),
        (
            "windows",
            narrower,
            "windows must be float32[slots earlier channels] with earlier = 3, channels = 96, got float32[2, 3, 95]",
        ),
        (
            "windows",
            bfloat16,
            "windows must be float32[slots earlier channels] with earlier = 3, channels = 96, got bfloat16[2, 3, 96]",
        ),
        ("key_dim", is_now(0), "96 channels do not hold 2 query and key heads of 0 and 4 value heads"),
        ("key_heads", is_now(0), "96 channels do not hold 0 query and key heads of 8 and 4 value heads"),
        ("key_heads", is_now(3), "96 channels do not hold 3 query and key heads of 8 and 4 value heads"),
    ],
    "gated_norm": [
        ("out", integers, "out must be float[chunk_rows nv dv], got int32[320, 4, 16]"),
        ("out", fewer, "319 rows are not 64 for each of 5 chunks"),
        ("projected", bfloat16, "projected must be float32[T width], got bfloat16[128, 70]"),
        ("projected", lambda x: x[:, :67], "rows of 67 columns, gates from column 4 up to column 68"),
        ("gate_begin", is_now(-1), "rows of 70 columns, gates from column -1 up to column 63"),
        ("weight", fewer, "weight must be float[dv] with dv = 16, got float32[15]"),
        ("weight", integers, "weight must be float[dv] with dv = 16, got int32[16]"),
        ("segments.chunk_row", fewer, "segments.chunk_row must be int32[T] with T = 128, got int32[127]"),
        ("segments.chunk_row", holding(-1, 7), "segments.chunk_row[7] must be in 0..319, got -1"),
        ("rows", bfloat16, "rows must be int32[N], got bfloat16[2]"),
        ("rows", stacked, "rows must be int32[N], got int32[1, 2]"),
        ("rows", holding(128, 1), "rows[1] must be in 0..127, got 128"),
    ],
    "rms_norm": [
        ("x", integers, "x must be float[N width], got int32[3, 8]"),
        ("x", stacked, "x must be float[N width], got float32[1, 3, 8]"),
        ("weight", fewer, "weight must be float[width] with width = 8, got float32[7]"),
        ("weight", integers, "weight must be float[width] with width = 8, got int32[8]"),
    ],
    "rotary_norm": [
        ("projected", integers, "projected must be float[N width], got int32[3, 40]"),
        ("weight", stacked, "weight must be float[D], got float32[1, 8]"),
        ("cos", fewer, "cos must be float[N frequencies] with N = 3, got float32[2, 2]"),
        ("sin", narrower, "sin must be float[N frequencies] with N = 3, frequencies = 2, got float32[3, 1]"),
        ("sin", integers, "sin must be float[N frequencies] with N = 3, frequencies = 2, got int32[3, 2]"),
    ],
    "matmul": [
        ("x", integers, "x must be float[M K], got int32[3, 8]"),
        ("x", lambda x: x[0], "x must be float[M K], got float32[8]"),
        ("weight", bfloat16, "weight must be float32[N K] with K = 8, got bfloat16[6, 8]"),
        ("weight", jnp.transpose, "weight must be float32[N K] with K = 8, got float32[8, 6]"),
        ("residual", fewer, "residual must be float32[M N] with M = 3, N = 6, got float32[2, 6]"),
        ("residual", bfloat16, "residual must be float32[M N] with M = 3, N = 6, got bfloat16[3, 6]"),
    ],
}


def with_change(arguments, operand, change):
    """The arguments with one changed, or with one field of it: also where its class would be checked as it is made."""
    name, *field = operand.split(".")
    if not field:
        return arguments | {name: change(arguments[name])}
    changed = copy.copy(arguments[name])
    object.__setattr__(changed, field[0], change(getattr(changed, field[0])))
    return arguments | {name: changed}


@pytest.mark.parametrize(
    "op, operand, change, said",
    [pytest.param(op, *row, id=f"{op} {row[0]} {number}") for op in REFUSED for number, row in enumerate(REFUSED[op])],
)
def test_says_what_does_not_belong(op, operand, change, said):
    arguments = with_change(ACCEPTED[op](), operand, change)
    with pytest.raises(ValueError) as refusal:
        getattr(pallas_kernels, op)(**arguments, implementation="pallas")
    assert str(refusal.value) == f"{op}: {said}"


def traced(function, arguments):
    """The program of an op or of its implementation, traced in all its arrays, of structure too."""
    static = {name: value for name, value in arguments.items() if isinstance(value, int | float)}
    arrays = {name: value for name, value in arguments.items() if name not in static}
    return jax.make_jaxpr(lambda arrays: jax.tree.leaves(function(**arrays, **static)))(arrays)


# In float32 or float64 beside rows of any dtype.
WIDE = {"log_decay", "write_strength", "states", "pool", "weights", "segments", "spans", "predecessors", "rows"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", ACCEPTED)
def test_accepts_what_belongs(op, dtype):
    """Of which it leaves nothing in what is traced: that is the implementation's program alone."""
    wide = WIDE if op == "matmul" else WIDE | {"weight"}

    def cast(path, x):
        return x.astype(dtype) if isinstance(x, jax.Array) and path[0].key not in wide else x

    arguments = jax.tree.map_with_path(cast, ACCEPTED[op]())
    found = traced(functools.partial(getattr(pallas_kernels, op), implementation="xla"), arguments)
    implementation = importlib.import_module(f"pallas_kernels.{op}.api").IMPLEMENTATIONS["xla"]
    assert str(found) == str(traced(implementation, arguments))
    assert found.out_avals[0].dtype == dtype


@pytest.mark.parametrize("rows, chunks", [(0, 0), (64, 0), (64, 1)])
def test_accepts_segments_of_nothing(rows, chunks):
    """Rows of no segment, chunks of none, and neither."""
    none = np.zeros(0, np.int32)
    segments = Segments(*4 * [none], *3 * [np.zeros(chunks, np.int32)], chunk_row=np.zeros(rows, np.int32), slots=1)
    segments.check("segmented_gdn", chunk_rows=64 * chunks, slots=1)


@pytest.mark.parametrize(
    "op, operand",
    [("fork_attention", "spans.own_end"), ("segmented_gdn", "segments.length"), ("segmented_conv", "predecessors")],
)
def test_looks_at_no_value_that_is_traced(op, operand):
    wrong = with_change(ACCEPTED[op](), operand, lambda x: np.full_like(x, 999))
    traced(functools.partial(getattr(pallas_kernels, op), implementation="xla"), wrong)
