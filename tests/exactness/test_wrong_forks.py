"""The tests of this folder can fail: every way of forking wrongly moves a probability beyond their tolerance.

In every dtype, and beyond that of `verify` too, but for what is named here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flide_jax.models import qwen3_5
from flide_jax.verification import TOLERANCES
from flide_jax.wrong_forks import WRONG_FORKS, positions_overlap, positions_restart
from tests.models.support import probabilities, tiny_model
from tests.tolerances import EXACT, FORKED_ROUNDED
from tests.trees import laid_out, plan_of

STATE, BRANCHES = 4, [*range(1, 10), 66]


# A shift of rotary positions moves this little model's answers by a hundredth, and `verify` allows bfloat16 more than
# that: it speaks for deep models, in which rounding adds up.
UNSEEN_BY_VERIFY = {(positions_restart, "bfloat16"), (positions_overlap, "bfloat16")}


@functools.cache
def answering(dtype: str):
    """metadata -> the probabilities of every read, compiled once: structure is data."""
    model = tiny_model("untied", dtype)
    run = jax.jit(lambda params, metadata: qwen3_5.forward(params, metadata, model.config))
    return lambda metadata: probabilities(run(model.params, jax.tree.map(jnp.asarray, metadata))[: len(BRANCHES)])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mutation", WRONG_FORKS, ids=lambda mutation: mutation.__name__)
def test_a_wrong_fork_is_seen(mutation, dtype):
    _, metadata = laid_out([plan_of(STATE, BRANCHES, np.random.default_rng(54))])
    with jax.enable_x64(dtype == "float64"):
        answers = answering(dtype)
        error = np.abs(answers(mutation(metadata)) - answers(metadata)).max()
    assert error > 2 * FORKED_ROUNDED.get(dtype, EXACT), f"{error:.1e}"
    assert (error > TOLERANCES[dtype]) == ((mutation, dtype) not in UNSEEN_BY_VERIFY), f"{error:.1e}"
