"""What the Mosaic GPU kernels share."""

import contextlib
from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu

MULTIPROCESSORS = 132  # of an H200
# Blocks of bfloat16 in shared memory as the copy engine writes and the matrix unit reads them.
SWIZZLED: Any = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]


def interpreted(interpret: bool) -> contextlib.AbstractContextManager[Any]:
    """Kernels called inside run on the host, with barriers and copies simulated, if `interpret`."""
    if not interpret:
        return contextlib.nullcontext()
    return plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams())
