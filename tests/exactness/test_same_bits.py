"""A batch-invariant forward gives a question the same bits whatever it shares its round with; another one does not."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flide_jax.engine import Ablation, Engine, EngineConfig
from flide_jax.engine.executables import Executables
from flide_jax.engine.program import Program, precision
from flide_jax.first_difference import first_difference, outputs, where_bits_differ
from flide_jax.layout import Capacity, Demand
from flide_jax.models import families
from flide_jax.models.packing import Packing
from flide_jax.request import Request, YesNo
from flide_jax.same_bits import compare_bits, same_rows
from tests.exactness.test_neighbours import PADDING, POISONED, honest_plan, poisoned_plan
from tests.models import support
from tests.models.support import LABEL_IDS, architecture
from tests.tolerances import relative_error
from tests.trees import plan_of, trees

MODEL = "one_kv_head"  # heads of three query heads, one period of the released order of layers
# A small one, one whose chunks are scarce, and one for up to 64 requests.
CAPACITIES = (Capacity.of_tokens(128), Capacity.of_tokens(384), Capacity(640, requests=64, branches=80, reads=84))
DTYPES = ["float32", "bfloat16"]


def program_of(dtype: str, *, batch_invariant: bool) -> Program:
    return Program(
        family=families.QWEN3_5,
        architecture=architecture(MODEL),
        label_ids=LABEL_IDS,
        dtype=jax.numpy.dtype(dtype),
        implementation=None,
        ablation=Ablation(),
        batch_invariant=batch_invariant,
    )


@functools.cache
def executables(dtype: str, *, batch_invariant: bool = True, capacities: tuple[int, ...] = (128, 384)) -> Executables:
    config = EngineConfig(dtype=dtype, capacities=capacities, batch_invariant=batch_invariant)
    program = program_of(dtype, batch_invariant=batch_invariant)
    return Executables.of(program, program.packing.pack(support.tiny_model(MODEL, dtype).params), config)


def fitting(plans) -> list[Capacity]:
    demand = functools.reduce(lambda total, plan: total + Demand.of(plan), plans[1:], Demand.of(plans[0]))
    return [capacity for capacity in CAPACITIES if capacity.fits(demand)]


def alone(run: Executables, plan) -> np.ndarray:
    return run.logits_in(fitting([plan])[0], [plan])[0]


def shares(run: Executables, *rounds) -> list[bool]:
    """Which reads of rounds have the bits of their plan alone."""
    found = []
    for plans in rounds:
        for plan, logits in zip(plans, run.logits_in(fitting(plans)[-1], plans), strict=True):
            found += same_rows(alone(run, plan), logits).tolist()
    return found


@st.composite
def rounds_in_two_orders(draw):
    plans = draw(trees(most_tokens=600, most_branches=20))
    return plans, draw(st.permutations(plans))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=3)
@given(rounds_in_two_orders())
def test_random_rounds_in_any_order(dtype, rounds):
    assert all(shares(executables(dtype), *rounds))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_to_sixty_four_requests(dtype):
    rng = np.random.default_rng(0)
    plans = [plan_of(int(state), [int(branch)], rng) for state, branch in rng.integers(1, 5, (64, 2))]
    assert all(shares(executables(dtype), *(plans[:count] for count in (1, 2, 3, 8, 33, 64))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("state", [1, 3, 63, 64, 65])
def test_a_forked_question_has_the_bits_of_its_question_alone_through_every_capacity(dtype, state):
    run, rng = executables(dtype), np.random.default_rng(state)
    plan = plan_of(state, [1, 4, 33, 64, 65], rng)
    forked = alone(run, plan)
    for branch in range(5):
        for capacity in fitting([plan.only(branch)]):
            assert same_rows(forked[branch : branch + 1], run.logits_in(capacity, [plan.only(branch)])[0]).all()


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_a_poisoned_neighbour_changes_no_bit(value, monkeypatch):
    """It stands first, where blocks of keys that are not full take rows that nobody sees; padding is poisoned, too."""
    run = executables("float32")
    plan, neighbour = honest_plan(70, [5, 66], 0), poisoned_plan(honest_plan(65, [64, 3], 1))
    expected = alone(run, plan)
    params = support.tiny_model(MODEL, "float32").params
    params = params.replace(embedding=params.embedding.at[np.array([PADDING, POISONED])].set(value))
    monkeypatch.setattr(run, "params", Packing.of(params).pack(params))
    _, found = run.logits_in(CAPACITIES[-1], [neighbour, plan])
    assert same_rows(expected, found).all()


def test_it_is_the_same_model():
    plans = [plan_of(70, [5, 66, 130], np.random.default_rng(2)), plan_of(3, [1, 9], np.random.default_rng(3))]
    expected, found = (
        np.concatenate(executables("float32", batch_invariant=invariant).logits_in(CAPACITIES[-1], plans))
        for invariant in (False, True)
    )
    assert relative_error(found, expected) < 1e-5


def test_the_usual_forward_changes_bits():
    """So that the tests above can fail."""
    rng = np.random.default_rng(4)
    plans = [plan_of(int(state), [int(branch)], rng) for state, branch in rng.integers(1, 9, (16, 2))]
    found = shares(executables("float32", batch_invariant=False), plans)
    assert not all(found)


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_what_a_user_is_told(batch_invariant):
    rng = np.random.default_rng(5)
    plans = [plan_of(20, [3, 70], rng), plan_of(65, [9], rng), plan_of(5, [6], rng)]
    found = compare_bits(executables("float32", batch_invariant=batch_invariant), plans)
    assert [one.questions for one in found[:4]] == [4, 4, 4, 4] and found[4].questions in (4, 8)
    assert all(one.same == one.questions and one.first is None for one in found) == batch_invariant
    if not batch_invariant:
        number, read = next(one.first for one in found if one.first is not None)
        assert 0 <= number < 3 and 0 <= read < plans[number].read_branches.size


def test_float64_keeps_them_too():
    rng = np.random.default_rng(7)
    plans = [plan_of(20, [3, 70], rng), plan_of(10, [9], rng)]
    with precision(np.dtype(np.float64)):
        *found, _ = compare_bits(executables("float64", capacities=(128,)), plans)
    assert all(one.same == one.questions > 0 for one in found)


OPERATIONS = {"in_proj", "attention", "convolution", "recurrence", "gated_norm", "out_proj", "gate_up", "down"}
OPERATIONS |= {"mixer_norm", "feed_forward_norm", "query", "key", "gate"}


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_the_first_operation_that_differs(batch_invariant):
    run = executables("float32", batch_invariant=batch_invariant)
    program, rng = program_of("float32", batch_invariant=batch_invariant), np.random.default_rng(6)
    plans = [plan_of(9, [3], rng), plan_of(70, [5, 66], rng)]
    alone, together = (plans[1:], 0, CAPACITIES[1]), (plans, 1, CAPACITIES[2])
    found = first_difference(program, run.params, alone, together)
    assert (found is None) == batch_invariant
    if found is not None:
        assert 0 <= found.layer < 4 and found.operation in OPERATIONS
        given = outputs(program, run.params, *alone)
        assert {one.operation for one in given} == OPERATIONS and given[-1].layer == 3
        assert all(len(one.rows) == 141 for one in given)
        assert 0 < found.rows <= found.of_rows == 141 and 0 < found.largest < 1e-4
    with pytest.raises(ValueError, match="has to be the same request, but its state differ"):
        first_difference(program, run.params, (plans, 0, CAPACITIES[2]), together)
    with pytest.raises(ValueError, match="there is no plan 2 in a round of 2"):
        first_difference(program, run.params, alone, (plans, 2, CAPACITIES[2]))


ASKED = [Request(n * "Mary is in the garden. ", {"q": YesNo("Is she?"), "r": YesNo("Who is?")}) for n in (2, 5, 9)]


def test_where_the_bits_of_requests_differ(tiny_model, monkeypatch):
    """Of an engine that keeps them, notebook 6 shows it: nowhere."""
    engine = Engine.load(tiny_model, EngineConfig(dtype="float32", capacities=(128, 384)))
    found = where_bits_differ(engine, ASKED, 2)
    assert found.operation in OPERATIONS and str(found).startswith(f"layer {found.layer}, {found.operation}: ")
    monkeypatch.setattr("flide_jax.first_difference.first_difference", lambda *rounds: None)
    behind = where_bits_differ(engine, ASKED, 2)
    assert (behind.operation, behind.layer, behind.of_rows) == ("readout", len(engine.program.abstract.layers), 2)
    with pytest.raises(ValueError, match="there is no request 3 of 3"):
        where_bits_differ(engine, ASKED, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_bytes": 10**9}, "with checkpoints: a state that resumes"),
        ({"ablation": Ablation(forks=False)}, "without forks"),
        ({"ablation": Ablation(op_by_op=True)}, "op by op"),
        ({"ablation": Ablation(selective_readout=False)}, "without selective readout"),
        ({"capacities": (32, 128)}, "in a capacity of 32 tokens, only from 64 on"),
        ({"implementation": "reference"}, "with fork_attention by reference, which cuts nothing"),
        ({"implementation": {"segmented_gdn": "triton"}}, "with segmented_gdn by triton, which cuts nothing"),
    ],
)
def test_what_is_not_covered_is_refused(options, message):
    with pytest.raises(ValueError, match=f"an engine cannot be batch-invariant {message}"):
        EngineConfig(batch_invariant=True, **options)


def test_other_devices_are_refused(monkeypatch):
    config = EngineConfig(batch_invariant=True)
    config.check_device()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("pallas_kernels.dispatch.device_kind", lambda: "NVIDIA H200")
    config.check_device()
    assert config.resolved_implementation() == "pallas"
    for implementation in ("xla", {"rms_norm": "xla", "matmul": "pallas"}):
        with pytest.raises(ValueError, match=r"batch-invariant with \w+ by xla on NVIDIA H200, only by pallas"):
            dataclasses.replace(config, implementation=implementation).check_device()
    with pytest.raises(ValueError, match="on a CPU, and in bfloat16 on H100, .*, not in float32 on NVIDIA H200"):
        EngineConfig(dtype="float32", batch_invariant=True).check_device()
    monkeypatch.setattr("pallas_kernels.dispatch.device_kind", lambda: "NVIDIA A100")
    with pytest.raises(ValueError, match="not in bfloat16 on NVIDIA A100"):
        config.check_device()
