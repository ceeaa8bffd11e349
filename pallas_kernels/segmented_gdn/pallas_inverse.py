"""The inverse of a unit lower triangular 64 x 64 matrix in one warpgroup, at float32 accuracy.

Each warp has 16 rows. It inverts its 16 x 16 block of the diagonal by substitution in float32, one row a lane. Then
T (I + A) = I is solved by column blocks from the right, with D_j the inverse of diagonal block j:

T_j = (I_j - sum over k > j of T_k A_kj) D_j

A warp needs its own rows of T and everybody's A and D, so the warps wait for one another only once. These products go
through `mma`, whose result has the layout of its left operand: T never leaves the registers. Operands are split into
two float16 halves. With keys of unit length and strengths of at most 1 no entry of T or of the sums is larger than 1.
"""

from typing import Any

import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import pallas as pl
