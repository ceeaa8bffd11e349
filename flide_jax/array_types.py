"""The shape legend: one letter or word for each size, the same in every annotation, comment and einsum.

    T       rows of the stream (tokens of a round, padding included)
    N       query rows: all T rows, or the read rows only
    R       requests of a round
    Q       branches of a round (usually one for each question)
    G       segments: R states and Q branches; in a growing round two for each, of which one may be empty
    C       chunks: pieces of at most CHUNK_ROWS rows of a segment; chunk_rows = CHUNK_ROWS * C, chunks filled up
    L       labels: rows of the readout head
    d, f    width of the residual stream, of the feed-forward layer
    V       vocabulary entries
    H, KV   query heads, key and value heads of attention;  D  their size
    nk, nv  key heads, value heads of a Gated DeltaNet layer;  dk, dv  their sizes
    pages   of keys that outlive a round, PAGE_ROWS rows each; entries of the table that names those of one round
    slots   recurrent states of a round; pool_slots: those that outlive it
    taps    taps of the short convolution; earlier = taps - 1, the rows it reads beside its own

dtypes: the activations and matrices are in the engine's dtype; norm weights, gates, recurrent states, softmax and
logits are float32, or float64 when the engine's dtype is float64.
"""

import jax
import numpy as np
from jaxtyping import Array, Float, Int32

Hidden = Float[Array, "T d"]
RowHidden = Float[Array, "N d"]
Logits = Float[Array, "reads L"]
Tokens = Int32[jax.Array | np.ndarray, " T"]
ReadRows = Int32[jax.Array | np.ndarray, " reads"]
RotaryPositions = Int32[jax.Array | np.ndarray, "3 T"]
Predecessors = Int32[jax.Array | np.ndarray, "T earlier"]
IntVector = Int32[np.ndarray, " _"]
