"""A tiny model that keeps checkpoints, and the same one that keeps none."""

import dataclasses
import functools

import jax
import numpy as np

from flide_jax.checkpoints import Placement, StoreSize
from flide_jax.engine.executables import Executables
from flide_jax.engine.growing import GrowingStates
from flide_jax.layout import Ladder, MetadataLayout
from flide_jax.models import qwen3_5
from flide_jax.models.pool import bytes_of
from flide_jax.prompts.plan import Plan
from tests.models.support import tiny_model
from tests.tolerances import relative_error
from tests.trees import plan_of

TAPS = 4
RUNG, ENTRIES = 512, 12
PAGES, SLOTS = 40, 8


@dataclasses.dataclass(frozen=True, eq=False)
class ToldPlan(Plan):
    """A plan that says how many tokens of its state are to be saved."""

    saved: int = 0


class AsTold(GrowingStates):
    """A state is saved where its plan says."""

    def _position(self, plan, resumed):
        return plan.saved if plan.saved > resumed else None


def compiled(forward):
    """What runs a capacity."""

    def run(capacity):
        layout = MetadataLayout(capacity, TAPS)
        pool = (2,) if capacity.is_growing else ()
        return jax.jit(lambda params, buffer, *pool: forward(params, layout.unpack(buffer), *pool), donate_argnums=pool)

    return run


@functools.cache
def executables(config: str, dtype: str, *, pages: int | None = None, slots: int = SLOTS) -> Executables:
    """With room for so many pages and checkpoints; None: without any."""
    with jax.enable_x64(dtype == "float64"):
        model = tiny_model(config, dtype)
    params, ladder = model.params, Ladder((RUNG,))

    plain = functools.partial(qwen3_5.forward, config=model.config)
    if pages is None:
        return Executables(compiled(plain), params, ladder, conv_taps=TAPS)
    page, slot = bytes_of(qwen3_5.abstract_pool(model.config, pages=1, slots=1, dtype=jax.numpy.dtype(dtype)))
    size = StoreSize(pages, slots, page_bytes=page, slot_bytes=slot)
    # One size for the arrays of every store, so that its programs are the same ones; a smaller store uses a part.
    shapes = qwen3_5.abstract_pool(model.config, pages=PAGES, slots=SLOTS, dtype=jax.numpy.dtype(dtype))
    structure = jax.tree.structure(shapes)

    def forward(params, metadata, *leaves):
        if not leaves:
            return plain(params, metadata)
        pool = jax.tree.unflatten(structure, *leaves)
        logits, after = qwen3_5.growing_forward(params, metadata, pool, model.config)
        return logits, tuple(jax.tree.leaves(after))

    growing = AsTold(size, shapes, Placement(shortest=1), dtype=jax.numpy.dtype(dtype))
    growing_ladder = Ladder((RUNG,), entries=ENTRIES)
    return Executables(
        compiled(forward), params, ladder, conv_taps=TAPS, growing=growing, growing_ladder=growing_ladder
    )


@dataclasses.dataclass
class Growing:
    """Asks both, and compares."""

    config: str = "untied"
    dtype: str = "float64"
    pages: int = PAGES
    slots: int = SLOTS

    def __post_init__(self) -> None:
        self.kept = executables(self.config, self.dtype, pages=self.pages, slots=self.slots)
        self.fresh = executables(self.config, self.dtype)
        self.kept.growing.clear()

    @property
    def store(self):
        return self.kept.growing.store

    def ask(self, *plans: Plan, resumed: list[int] | None = None) -> float:
        """The largest relative error of a logit of these plans, asked in one round. `resumed`: what they are to."""
        with jax.enable_x64(self.dtype == "float64"):
            started = self.kept.start(plans)
            found, expected = started(), self.fresh.logits(plans)
        if resumed is not None:
            assert started.resumed == resumed
        return max(relative_error(one, other) for one, other in zip(found, expected, strict=True))


def text_of(tokens: int, seed: int) -> np.ndarray:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, 97, tokens, np.int32)


def growing_plan(state: np.ndarray, saved: int | None, branches=(5, 1), *, seed: int = 0, **changes) -> Plan:
    """A state that is to be saved at a token, with branches of random tokens that are read at every row."""
    plan = plan_of(1, branches, np.random.default_rng(seed))
    rows = np.arange(plan.branches.size, dtype=np.int32)
    starts = np.cumsum(plan.branch_lengths) - plan.branch_lengths
    branch = np.repeat(np.arange(plan.branch_lengths.size, dtype=np.int32), plan.branch_lengths)
    return ToldPlan(
        state=state,
        branches=plan.branches,
        branch_lengths=plan.branch_lengths,
        read_branches=branch,
        read_offsets=rows - starts[branch].astype(np.int32),
        saved=saved or 0,
        **{"salt": "" if saved is not None else None} | changes,
    )
