"""Races in interpreted kernels: accesses to one place in memory, one of them a write, that nothing orders.

The interpreter orders TMA and other accesses as the memory model does, proxies included. What it takes for races in
kernels that are right: rows that two programs write with equal values, where the last piece of an array is moved back
onto the one before (`rms_norm`, `rotary_norm`); and reads of operands that are plain loads where they are interpreted
and `wgmma` on the card (`fork_attention`, `segmented_gdn`).
"""

import functools
from collections.abc import Iterator

import pytest
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks  # nothing public tells of races
from jax.experimental.pallas import mosaic_gpu as plgpu

# Wherever kernels are interpreted, for what was traced without it would be used again.
plgpu.InterpretGPUParams = functools.partial(plgpu.InterpretGPUParams, detect_races=True)

_state_of = gpu_callbacks.GPURaceDetectionState
_kernels = []


def _state(**sizes):
    _kernels.append(_state_of(**sizes))
    return _kernels[-1]


gpu_callbacks.GPURaceDetectionState = _state


@pytest.fixture
def no_races() -> Iterator[None]:
    """Fails where a kernel raced that the test interpreted; its output says which lines did."""
    _kernels.clear()
    yield
    assert _kernels, "no kernel was interpreted"
    assert not any(kernel.races_found for kernel in _kernels)
