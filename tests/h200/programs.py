"""Every Pallas kernel at the sizes of released models, and four layers of two of them.

`python -m tests.h200.programs NAME DIRECTORY OPTIONS` compiles one with XLA's options (JSON), dumps what XLA made of it
into the directory and prints its temporary bytes.
"""

import dataclasses
import json
import sys
import warnings
from collections.abc import Callable
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
from flide_jax.models.qwen3_5.config import LayerKind
from pallas_kernels import ConvWeights, fork_attention, gated_norm, segmented_conv, segmented_gdn
from pallas_kernels.matmul import cases as products
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from tests.h200.compiler import compile_for_h200

TAPS = 4
ROUND = MetadataLayout(Capacity.of_tokens(2_688), TAPS)  # what the ops alone are compiled for
CHUNK_ROWS_OF_ROUND = ROUND.capacity.chunks * CHUNK_ROWS
LABELS = 38


class Program(NamedTuple):
    """A function, and operands it is compiled for; where there is a round, the first is its metadata buffer."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]


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


def product(name: str) -> Program:
    case = products.CASES[name]
    operands = jax.eval_shape(case.operands, jax.random.key(0))
    return Program(products.caller(case, "pallas"), operands)


def model(size: str, tokens: int) -> Program:
    """Two GDN layers and two of attention, one of which is the last and answers at the read rows."""
    layers = 2 * (LayerKind.GATED_DELTA_NET, LayerKind.ATTENTION)
    config = dataclasses.replace(SIZES[size], layers=layers)
    specs = qwen3_5.abstract(config, labels=LABELS, dtype=np.dtype(jnp.bfloat16))
    packing = Packing.of(specs)
    layout = MetadataLayout(Capacity.of_tokens(tokens), config.gated_delta_net.conv_taps)

    def function(buffer: jax.Array, params: tuple[jax.Array, ...]) -> jax.Array:
        return qwen3_5.forward(packing.unpack(params), layout.unpack(buffer), config)

    return Program(function, (buffer(layout), packing.shapes(specs)))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "fork_attention 16/4 x 256": lambda: attention(16, 4, 256),
    "fork_attention 24/4 x 256": lambda: attention(24, 4, 256),
    "fork_attention 16/4 x 128": lambda: attention(16, 4, 128),
    "fork_attention 16/4 x 64": lambda: attention(16, 4, 64),
    "segmented_conv 16/32": lambda: convolution(SIZES["4B"].gated_delta_net),
    "segmented_gdn 16/32": lambda: recurrence(SIZES["4B"].gated_delta_net),
    "gated_norm 32": lambda: norm(SIZES["4B"].gated_delta_net),
    "matmul in 2688": lambda: product("4B in 2688"),
    "matmul down 2688": lambda: product("4B down 2688"),
    "matmul gate_up 2688": lambda: product("4B gate_up 2688"),
    "matmul in 64": lambda: product("0.8B in 64"),
    "matmul down 64": lambda: product("4B down 64"),
    "matmul gate_up 64": lambda: product("4B gate_up 64"),
    "4B": lambda: model("4B", 2_688),
    "0.8B": lambda: model("0.8B", 1_024),
}


def main(name: str, directory: str, options: str) -> None:
    # Nothing is run: an old assembler's mistakes do not matter here.
    warnings.filterwarnings("ignore", message=".*ptxas is release")
    program = PROGRAMS[name]()
    dumped = {"xla_dump_to": directory, **json.loads(options)}
    memory = compile_for_h200(program.function, *program.operands, options=dumped).memory_analysis()
    print(f"temporary bytes: {memory.temp_size_in_bytes}")


if __name__ == "__main__":
    main(*sys.argv[1:])
