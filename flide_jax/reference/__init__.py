"""The float64 oracle: one question, one sequence, token by token, in numpy. No forks, no kernels, nothing shared.

What Flide computes must equal this. It reads a checkpoint by itself and imports nothing else of the package, so that an
error in layout, models or kernels cannot hide here.

checkpoint       config.json and safetensors as plain float64 arrays
layers           norms, activations, the MLP
attention        rotary positions, attention with a growing list of keys and values, the output gate
gated_delta_net  the convolution window and the delta rule as a recurrence (Eq. 4)
qwen3_5          the whole model: residual stream, label logits (Eq. 1), probabilities
"""

from flide_jax.reference.checkpoint import Config, read_checkpoint, read_config
from flide_jax.reference.qwen3_5 import hidden_states, label_logits, probabilities

__all__ = ["Config", "hidden_states", "label_logits", "probabilities", "read_checkpoint", "read_config"]
