"""What the Mosaic GPU kernels share."""

import contextlib
import functools
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

MULTIPROCESSORS = 132  # of an H200
# Blocks of bfloat16 in shared memory as the copy engine writes and the matrix unit reads them.
SWIZZLED: Any = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]
HEAD_DIM = 128  # of the recurrence's heads
# Rows that are in registers at a time. A chunk at once took 190 registers a thread, so that two blocks filled a
# multiprocessor.
PIECE_ROWS = 32
# So many rows of one head in registers: 16 lanes hold a row's 128 channels, 8 each, for loads and stores of 16 bytes; a
# row is summed within a warp.
HEAD_ROWS = plgpu.Layout.TILED(
    plgpu.Tiling(((PIECE_ROWS, HEAD_DIM), (PIECE_ROWS // 4, HEAD_DIM), (2, HEAD_DIM), (8,))),
    warp_dims=(-7,),
    lane_dims=(-3, -2),
    vector_dim=-1,
)


@functools.cache
def check_assembler() -> None:
    """Warns of an assembler that may compile kernels wrongly which multiply operands in registers.

    ptxas before 13.3 may use such a register again before it has been read. The kernels here came out right under 13.0
    on an H200; `pytest -m gpu tests/device` tells whether they do on another machine. Mosaic takes the first on PATH.
    """
    if (ptxas := shutil.which("ptxas")) is None:
        return
    printed = subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout
    if (found := re.search(r"release (\d+)\.(\d+)", printed)) and tuple(map(int, found.groups())) < (13, 3):
        message = f"{ptxas} is release {'.'.join(found.groups())}: before 13.3 it may miscompile wgmma on registers"
        warnings.warn(f"{message}; `pytest -m gpu tests/device` checks the kernels", stacklevel=2)


def repeated(
    x: Array, *, along: int, shape: tuple[int, ...] = (PIECE_ROWS, HEAD_DIM), layout: Any = HEAD_ROWS
) -> Array:
    """One value a row (`along` 0) or a channel (1) as a whole block in a layout."""
    return plgpu.layout_cast(lax.broadcast_in_dim(x, shape, [along]), layout)


def normed_rows(pieces: Sequence[Array], weight: Any, *, epsilon: float, layout: Any) -> Iterator[Array]:
    """x / sqrt(mean(x^2) + epsilon) * (1 + weight) of rows whose columns are in equal pieces in a layout; float32."""
    shape = pieces[0].shape
    squares = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), layout)
    for piece in pieces:
        squares += piece.astype(jnp.float32) * piece.astype(jnp.float32)
    mean = jnp.sum(squares, axis=1) / (len(pieces) * shape[1])
    inverse = repeated(lax.rsqrt(mean + epsilon), along=0, shape=shape, layout=layout)
    for number, piece in enumerate(pieces):
        columns = pl.ds(number * shape[1], shape[1])
        scale = 1.0 + plgpu.load(weight.at[columns], layout=layout.reduce(0), optimized=False)
        yield piece.astype(jnp.float32) * inverse * repeated(scale, along=1, shape=shape, layout=layout)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); the root takes fewer instructions than the division."""
    root = lax.rsqrt(1.0 + jnp.exp(-x))
    return root * root


def interpreted(interpret: bool) -> contextlib.AbstractContextManager[Any]:
    """Kernels called inside run on the host, with barriers and copies simulated, if `interpret`."""
    if not interpret:
        check_assembler()
        return contextlib.nullcontext()
    return plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams())
