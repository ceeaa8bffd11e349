"""The operations a forked stream needs, each with a reference, an XLA form and kernels for accelerators.

Reading order: `fork_attention` (Eq. 3); `segmented_conv`, `segmented_gdn` and `gated_norm` (Eq. 4); `rms_norm` and
`matmul`, which treat every row alone.
"""

from pallas_kernels.fork_attention.api import CachedKeys, KeySpans, fork_attention
from pallas_kernels.gated_norm.api import gated_norm
from pallas_kernels.matmul.api import matmul
from pallas_kernels.rms_norm.api import rms_norm
from pallas_kernels.segmented_conv.api import ConvWeights, segmented_conv
from pallas_kernels.segmented_gdn.api import Segments, segmented_gdn

__all__ = [
    "CachedKeys",
    "ConvWeights",
    "KeySpans",
    "Segments",
    "fork_attention",
    "gated_norm",
    "matmul",
    "rms_norm",
    "segmented_conv",
    "segmented_gdn",
]
