"""The operations a forked stream needs, each with a reference, an XLA form and kernels for accelerators.

Reading order: `fork_attention` (Eq. 3), `segmented_conv` and `segmented_gdn` (Eq. 4).
"""

from pallas_kernels.fork_attention.api import KeySpans, fork_attention
from pallas_kernels.segmented_conv.api import ConvWeights, segmented_conv
from pallas_kernels.segmented_gdn.api import Segments, segmented_gdn

__all__ = ["ConvWeights", "KeySpans", "Segments", "fork_attention", "segmented_conv", "segmented_gdn"]
