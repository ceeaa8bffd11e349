"""Every Pallas kernel at the sizes of released models, and four layers of two of them.

`python -m tests.h200.programs NAME DIRECTORY OPTIONS` compiles one with XLA's options (JSON), dumps what XLA made of it
into the directory and prints its temporary bytes.
"""

import dataclasses
import functools
import json
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from experiments.model_sizes import SIZES
from flide_jax.layout import Capacity, MetadataLayout
from flide_jax.models import qwen3_5
from flide_jax.models.gated_delta_net import GatedDeltaNetConfig
from flide_jax.models.packing import Packing
from flide_jax.models.pool import Pool
from flide_jax.models.qwen3_5.config import LayerKind
from pallas_kernels import (
    CachedKeys,
    ConvWeights,
    KeySpans,
    fork_attention,
    gated_norm,
    segmented_conv,
    segmented_gdn,
)
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from pallas_kernels.matmul import cases as products
from pallas_kernels.rms_norm import cases as row_norms
from pallas_kernels.rotary_norm import cases as rotary_norms
from pallas_kernels.segmented_conv import cases as convolutions
from pallas_kernels.segmented_gdn import cases as recurrences
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from tests.h200.compiler import compile_without_card

TAPS = 4
ROUND = MetadataLayout(Capacity.of_tokens(2_688), TAPS)  # what the ops alone are compiled for
CHUNK_ROWS_OF_ROUND = ROUND.capacity.chunks * CHUNK_ROWS
LABELS = 38
# Of growing rounds; sizes that no other array has.
POOL_PAGES, POOL_SLOTS = 4_097, 67


class Program(NamedTuple):
    """A function, and operands it is compiled for; where there is a round, the first is its metadata buffer.

    `donated`: the operands that the caller gives away.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def together(*programs: Program) -> Program:
    """All of them in one executable, for a process takes longer to start than a kernel to compile."""

    def function(*operands: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(program.function(*its) for program, its in zip(programs, operands, strict=True))

    return Program(function, tuple(program.operands for program in programs))


def matrix(*shape: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, jnp.bfloat16)


def small(*shape: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, np.float32)


def buffer(layout: MetadataLayout) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((layout.size,), np.int32)


def attention(heads: int, key_heads: int, head_dim: int) -> Program:
    rows = ROUND.capacity.tokens

    def function(buffer: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        spans = ROUND.unpack(buffer).spans
        return fork_attention(query, key, value, spans, scale=head_dim**-0.5, implementation="pallas")

    return Program(function, (buffer(ROUND), matrix(rows, heads, head_dim), *2 * [matrix(rows, key_heads, head_dim)]))


def resumed_attention(head_dim: int, *, rows: int) -> Program:
    """With a pool of pages and a table of them; at 704 rows the keys are split over programs."""
    heads, key_heads, pages, entries = 16, 4, POOL_PAGES, 1_024
    column = ShapeDtypeStruct((rows,), np.int32)
    cached = CachedKeys(
        *2 * [matrix(pages, PAGE_ROWS, key_heads, head_dim)], ShapeDtypeStruct((entries,), np.int32), column, column
    )

    def function(query: jax.Array, key: jax.Array, value: jax.Array, spans: KeySpans, cached: CachedKeys) -> jax.Array:
        return fork_attention(query, key, value, spans, cached=cached, scale=head_dim**-0.5, implementation="pallas")

    operands = (matrix(rows, heads, head_dim), *2 * [matrix(rows, key_heads, head_dim)])
    return Program(function, (*operands, KeySpans(*4 * [column]), cached))


def convolution(config: GatedDeltaNetConfig) -> Program:
    rows, heads, channels = ROUND.capacity.tokens, config.value_heads, config.conv_channels

    def function(buffer: jax.Array, projected: jax.Array, gates: jax.Array, weights: ConvWeights) -> Any:
        metadata = ROUND.unpack(buffer)
        return segmented_conv(
            projected,
            gates,
            gates,
            weights,
            jnp.asarray(metadata.predecessors),
            metadata.segments,
            key_heads=config.key_heads,
            key_dim=config.key_dim,
            implementation="pallas",
        )

    weights = ConvWeights(small(TAPS, channels), small(heads), small(heads))
    projected = matrix(rows, channels + config.value_channels + 2 * heads)
    return Program(function, (buffer(ROUND), projected, matrix(rows, heads), weights))


def recurrence(config: GatedDeltaNetConfig) -> Program:
    def function(
        buffer: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, gates: jax.Array, states: jax.Array
    ) -> Any:
        segments = ROUND.unpack(buffer).segments
        return segmented_gdn(
            query, key, value, gates, gates, states, segments, scale=config.key_dim**-0.5, implementation="pallas"
        )

    keys = matrix(CHUNK_ROWS_OF_ROUND, config.key_heads, config.key_dim)
    values = matrix(CHUNK_ROWS_OF_ROUND, config.value_heads, config.value_dim)
    gates = small(CHUNK_ROWS_OF_ROUND, config.value_heads)
    states = small(ROUND.capacity.requests, config.value_heads, config.value_dim, config.key_dim)
    return Program(function, (buffer(ROUND), keys, keys, values, gates, states))


def growing_convolution() -> Program:
    """The step of a growing state, with windows."""
    case = convolutions.CASES["growing step"]
    return Program(convolutions.caller(case, "pallas"), jax.eval_shape(case.operands, jax.random.key(0)))


def growing_recurrence(*, donated: bool) -> Program:
    """The step of a growing state in three layers, each with a pool of its own."""
    case = recurrences.CASES["growing step"]
    *operands, pool = jax.eval_shape(case.operands, jax.random.key(0))
    call = recurrences.caller(case, "pallas")

    def function(operands: Sequence[jax.Array], pools: Sequence[jax.Array]) -> Any:
        return [call(*operands, pool) for pool in pools]

    return Program(function, (operands, 3 * [pool]), donated=(1,) if donated else ())


def norm(config: GatedDeltaNetConfig) -> Program:
    def function(buffer: jax.Array, out: jax.Array, projected: jax.Array, weight: jax.Array) -> jax.Array:
        return gated_norm(
            out,
            projected,
            weight,
            ROUND.unpack(buffer).segments,
            gate_begin=config.conv_channels,
            epsilon=1e-6,
            implementation="pallas",
        )

    out = matrix(CHUNK_ROWS_OF_ROUND, config.value_heads, config.value_dim)
    projected = matrix(ROUND.capacity.tokens, config.conv_channels + config.value_channels + 2 * config.value_heads)
    return Program(function, (buffer(ROUND), out, projected, small(config.value_dim)))


def row_norm(name: str) -> Program:
    case = {**row_norms.CASES, **row_norms.AWKWARD}[name]
    operands = jax.eval_shape(case.operands, jax.random.key(0))
    return Program(row_norms.caller(case, "pallas"), operands)


def rotary(name: str) -> Program:
    case = rotary_norms.CASES[name]
    operands = jax.eval_shape(case.operands, jax.random.key(0))
    return Program(rotary_norms.caller(case, "pallas"), operands)


def product(name: str) -> Program:
    case = products.CASES[name]
    operands = jax.eval_shape(case.operands, jax.random.key(0))
    return Program(products.caller(case, "pallas"), operands)


def model(size: str, tokens: int, *, periods: int = 2, batch_invariant: bool = False) -> Program:
    """In each period a GDN layer and one of attention; the last of all answers at the read rows."""
    config = dataclasses.replace(SIZES[size], layers=periods * (LayerKind.GATED_DELTA_NET, LayerKind.ATTENTION))
    specs = qwen3_5.abstract(config, labels=LABELS, dtype=np.dtype(jnp.bfloat16))
    packing = Packing.of(specs)
    layout = MetadataLayout(Capacity.of_tokens(tokens), config.gated_delta_net.conv_taps)

    def function(buffer: jax.Array, params: tuple[jax.Array, ...]) -> jax.Array:
        return qwen3_5.forward(packing.unpack(params), layout.unpack(buffer), config, batch_invariant=batch_invariant)

    return Program(function, (buffer(layout), packing.shapes(specs)))


def growing_model(size: str, tokens: int) -> Program:
    """The same layers in a growing round, with a pool that is given away."""
    plain = model(size, tokens)
    layers = 2 * (LayerKind.GATED_DELTA_NET, LayerKind.ATTENTION)
    config = dataclasses.replace(SIZES[size], layers=layers)
    packing = Packing.of(qwen3_5.abstract(config, labels=LABELS, dtype=np.dtype(jnp.bfloat16)))
    layout = MetadataLayout(Capacity.of_tokens(tokens, entries=2_048), config.gated_delta_net.conv_taps)
    pool = qwen3_5.abstract_pool(config, pages=POOL_PAGES, slots=POOL_SLOTS, dtype=np.dtype(jnp.bfloat16))

    def function(buffer: jax.Array, params: tuple[jax.Array, ...], pool: Pool) -> tuple[jax.Array, Pool]:
        return qwen3_5.growing_forward(packing.unpack(params), layout.unpack(buffer), pool, config)

    return Program(function, (buffer(layout), plain.operands[1], pool), donated=(2,))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "fork_attention 16/4 x 256": lambda: attention(16, 4, 256),
    "fork_attention": lambda: together(*(attention(16, 4, size) for size in (64, 128, 256)), attention(24, 4, 256)),
    "fork_attention resumed": lambda: together(resumed_attention(128, rows=2_688), resumed_attention(256, rows=704)),
    "segmented_conv, norms": lambda: together(
        convolution(SIZES["4B"].gated_delta_net),
        growing_convolution(),
        norm(SIZES["4B"].gated_delta_net),
        row_norm("4B 2688"),
        row_norm("27B"),
        rotary("4B queries 2688"),
        rotary("4B keys 2688"),
    ),
    "segmented_gdn": lambda: recurrence(SIZES["4B"].gated_delta_net),
    "segmented_gdn, pool": lambda: growing_recurrence(donated=True),
    "segmented_gdn, pool not donated": lambda: growing_recurrence(donated=False),
    "matmul": lambda: together(
        *(product(f"4B {name} {rows}") for name in ("in", "down", "gate_up") for rows in (64, 2_688))
    ),
    "0.8B": lambda: model("0.8B", 1_024),
    **{
        f"0.8B batch-invariant {tokens}": functools.partial(model, "0.8B", tokens, periods=1, batch_invariant=True)
        for tokens in (64, 2_688)
    },
    "0.8B growing": lambda: growing_model("0.8B", 768),
}


def main(name: str, directory: str, options: str) -> None:
    # Nothing is run: an old assembler's mistakes do not matter here.
    warnings.filterwarnings("ignore", message=".*ptxas is release")
    program = PROGRAMS[name]()
    dumped = {"xla_dump_to": directory, **json.loads(options)}
    compiled = compile_without_card(program.function, *program.operands, donated=program.donated, options=dumped)
    print(f"temporary bytes: {compiled.memory_analysis().temp_size_in_bytes}")
    for shape in re.findall(r"= (\w+\[[\d,]*\])\S* copy\(", compiled.as_text()):
        print(f"copied: {shape}")


if __name__ == "__main__":
    main(*sys.argv[1:])
