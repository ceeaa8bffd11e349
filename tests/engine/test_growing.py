"""Requests whose states grow, through the engine: the answers are the same, and less is computed."""

import dataclasses
import shutil
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flide_jax.checkpoints import Counters, Placement
from flide_jax.engine import Ablation, Engine, EngineConfig
from flide_jax.engine.program import Program
from flide_jax.engine.scheduler import RoundReport, Scheduler, SchedulerConfig
from flide_jax.request import Request
from tests.engine.requests import ACTION, ANGER, URGENT, largest_difference
from tests.tolerances import EXACT

QUESTIONS = {"urgent": URGENT, "action": ACTION, "anger": ANGER}
PLACEMENT = Placement(shortest=40, margin=8, step=8, reach=64)
CONFIG = EngineConfig(dtype="float64", capacities=(512,), checkpoint_bytes=60_000_000, placement=PLACEMENT)


@pytest.fixture(scope="module")
def growing_engine(tiny_model) -> Engine:
    """Some checkpoints fit."""
    return Engine.load(tiny_model, CONFIG)


@pytest.fixture
def kept(growing_engine) -> Engine:
    """The same, and nothing is stored yet."""
    growing_engine.clear_checkpoints()
    growing_engine.executables.growing.store.counters = Counters()
    return growing_engine


@pytest.fixture(scope="module")
def fresh(tiny_model) -> Engine:
    """It keeps nothing."""
    return Engine.load(tiny_model, dataclasses.replace(CONFIG, checkpoint_bytes=0))


def story(steps: int, *, about: str = "lamp") -> list[str]:
    """A text that grows."""
    return [" ".join(f"Day {day}: the {about} was sent back, and {day} more came." for day in range(1, steps + 1))]


def states(steps: int, *, about: str = "lamp", first: int = 3) -> list[str]:
    return [story(first + step, about=about)[0] for step in range(steps)]


def test_a_growing_state_is_computed_from_where_it_was(kept, fresh):
    before = 0
    for state in states(5):
        request = Request(state, QUESTIONS)
        answers, expected = kept.answer(request), fresh.answer(request)
        assert largest_difference([answers], [expected]) <= EXACT
        usage, tokens = answers.usage, kept.plan(request).state.size
        assert usage.resumed_state_tokens == before
        assert usage.computed_state_tokens + usage.resumed_state_tokens == tokens
        assert (usage.input_tokens, usage.output_tokens) == (expected.usage.input_tokens, 3)
        assert expected.usage.resumed_state_tokens == 0 and expected.usage.computed_state_tokens == tokens
        before = tokens - PLACEMENT.margin
    assert vars(kept.checkpoint_counters()) == {
        "hits": 4,
        "misses": 1,
        "tokens_saved": kept.checkpoint_counters().tokens_saved,
        "saved": 5,
        "evictions": 0,
        "spilled": 0,
        "restored": 0,
    }


def test_new_questions_about_a_recurring_state(kept, fresh):
    state = story(6)[0]
    for number in range(3):
        request = Request(state, {f"q{i}": ACTION for i in range(number + 1)})
        answers = kept.answer(request)
        assert largest_difference([answers], [fresh.answer(request)]) <= EXACT
        assert answers.usage.computed_state_tokens == (PLACEMENT.margin if number else kept.plan(request).state.size)


def test_structured_states_that_change_behind_their_turns(kept, fresh):
    """What stands behind the list of turns is left out once it was seen to change."""
    task = "Find out how many lamps there are, and which of them were sent back and why."
    resumed = []
    for steps in range(4, 10):
        turns = [{"role": "user", "content": f"Lamp {step} was sent back on a Monday."} for step in range(steps)]
        request = Request({"turns": turns, "task": task}, QUESTIONS)
        answers = kept.answer(request)
        assert largest_difference([answers], [fresh.answer(request)]) <= EXACT
        resumed.append(answers.usage.resumed_state_tokens)
    assert resumed[:2] == [0, 0] and min(np.diff(resumed[2:])) > 0 and resumed[2] > 0


def test_a_request_may_go_without(kept):
    for state in states(3):
        answers = kept.answer(Request(state, QUESTIONS, checkpoints=False))
        assert answers.usage.resumed_state_tokens == 0
    assert kept.checkpoint_counters().saved == 0 and kept.checkpoint_counters().misses == 0


def test_salts_keep_states_apart(kept):
    first, second = states(2)
    kept.answer(Request(first, QUESTIONS, cache_salt="one"))
    for salt, found in (("two", False), ("", False), ("one", True)):
        usage = kept.answer(Request(second, QUESTIONS, cache_salt=salt)).usage
        assert (usage.resumed_state_tokens > 0) == found


def test_short_states_leave_nothing(kept):
    for _ in range(2):
        assert kept.answer(Request("Short.", QUESTIONS)).usage.resumed_state_tokens == 0
    assert kept.checkpoint_counters().misses == 0


def test_agents_share_rounds(kept, fresh):
    """And with requests that do not grow; twice the same one, too."""
    agents = [states(4, about=about) for about in ("lamp", "vase", "chair")]
    for step in range(4):
        requests = [Request(agent[step], QUESTIONS) for agent in agents]
        requests += [Request("Short.", {"urgent": URGENT}), requests[0]]
        found = kept.answer_all(requests)
        assert largest_difference(found, fresh.answer_all(requests)) <= EXACT
        resumed = [answers.usage.resumed_state_tokens for answers in found]
        assert (np.array(resumed) > 0).tolist() == ([True, True, True, False, True] if step else [False] * 5)
    assert kept.checkpoint_counters().saved == 3 * 4


def test_more_rounds_than_one(kept, fresh):
    """A queue that does not fit into one capacity."""
    agents = [states(2, about=about, first=8) for about in ("lamp", "vase", "chair", "mirror", "carpet")]
    for step in range(2):
        requests = [Request(agent[step], QUESTIONS) for agent in agents]
        found = kept.answer_all(requests)
        assert largest_difference(found, fresh.answer_all(requests)) <= EXACT
    assert all(answers.usage.resumed_state_tokens for answers in found)


def test_threads_share_an_engine(kept, fresh):
    """Each with an agent of its own, and all of them with one state in common."""
    found: dict[int, list] = {}

    def agent(number: int) -> None:
        requests = [
            Request(f"{story(4)[0]} {state}", QUESTIONS) for state in states(5, about=f"lamp number {number}", first=1)
        ]
        found[number] = [(request, kept.answer(request)) for request in requests]

    threads = [threading.Thread(target=agent, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        requests, answers = zip(*found[number], strict=True)
        assert largest_difference(list(answers), fresh.answer_all(requests)) <= EXACT
        assert all(one.usage.resumed_state_tokens for one in answers[1:])
    assert not kept.executables.growing.store._pins and not kept.executables.growing.store._reserved


def test_the_scheduler_forms_rounds_of_what_is_computed(kept, fresh):
    """Four agents of 300 tokens each do not fit into a round of 512 at first, and do once they are known."""
    agents = [states(3, about=f"{about} of the first floor", first=14) for about in ("lamp", "vase", "chair", "bed")]
    reports: list[RoundReport] = []
    tokens = 0
    scheduler = Scheduler(
        kept.start,
        kept.executables.growing_ladder,
        probe=kept.plan(Request("It works.", {"q": URGENT})),
        demand=kept.executables.demand,
        observe=reports.append,
        config=SchedulerConfig(round_seconds=1e6),
    )
    try:
        for step in range(3):
            requests = [Request(agent[step], {"urgent": URGENT}) for agent in agents]
            plans = [kept.plan(request) for request in requests]
            assert sum(plan.tokens for plan in plans) > 2 * 512
            tokens += plans[0].tokens + sum(plan.tokens for plan in plans)
            busy = scheduler.submit(plans[0])  # the others wait together meanwhile
            ran = [future.result() for future in [scheduler.submit(plan) for plan in plans]]
            busy.result()
            answers = [kept.answers(*item, one.logits) for *item, one in zip(requests, plans, ran, strict=True)]
            assert largest_difference(answers, fresh.answer_all(requests)) <= EXACT
            assert all((one.resumed > 0) == (step > 0) for one in ran[1:])
    finally:
        scheduler.close()
    largest = kept.executables.growing_ladder.largest.tokens
    assert all(report.capacity_tokens == largest for report in reports)
    assert sum(report.tokens for report in reports) < 0.6 * tokens
    assert max(report.requests for report in reports) > 1 and kept.checkpoint_counters().hits >= 8


@pytest.mark.parametrize("words", [5, 150])
def test_a_turn_that_the_template_puts_first_holds_no_checkpoint_there(tiny_model, tmp_path, words):
    """Two agents take turns; nothing runs. Only the second one's first state is like another in its beginning alone."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    template = model / "chat_template.jinja"
    turn = "<|im_start|>system\n" + words * "Be of help. " + "<|im_end|>\n"
    template.write_text("{{- '" + turn.replace("\n", "\\n") + "' }}" + template.read_text())
    engine = Engine.load(model, dataclasses.replace(CONFIG, placement=dataclasses.replace(PLACEMENT, reach=1_024)))
    growing, margins = engine.executables.growing, []
    for step in range(4):
        for about in ("lamp", "vase"):
            plan = engine.plan(Request(story(6 + step, about=about), QUESTIONS))
            visits = growing.enter([plan])
            margins.append(plan.state.size - visits[0].position)
            growing.reserve(visits)
            growing.leave(visits, [np.zeros(1)])
    assert margins[0] == PLACEMENT.margin and set(margins[2:]) == {PLACEMENT.margin}


def test_who_waits_for_whom(kept):
    """Whose state goes on from another's, or differs in an end that may be left out; until that has been answered."""
    first, second = (kept.plan(Request(state, QUESTIONS)) for state in states(2))
    others = [
        kept.plan(Request(story(4, about="vase"), QUESTIONS)),
        kept.plan(Request(states(2)[1], QUESTIONS, cache_salt="other")),
        kept.plan(Request(states(2)[1], QUESTIONS, checkpoints=False)),
        kept.plan(Request("Short.", QUESTIONS)),
    ]
    growing = kept.executables.growing
    assert growing.awaits(second, [others[0], first]) and growing.awaits(first, [second])
    assert growing.awaits(first, [kept.plan(Request(f"{story(3)[0][:-9]} did not come.", QUESTIONS))])
    assert not any(growing.awaits(one, [first]) or growing.awaits(second, [one]) for one in others)
    kept.answer(Request(states(2)[0], QUESTIONS))
    assert not growing.awaits(first, [first]) and not growing.awaits(second, [first])


def test_clearing(kept):
    first, second = states(2)
    kept.answer(Request(first, QUESTIONS))
    assert kept.checkpoint_bytes > 0
    kept.clear_checkpoints()
    assert kept.checkpoint_bytes == 0
    assert kept.answer(Request(second, QUESTIONS)).usage.resumed_state_tokens == 0


def test_a_round_that_fails_on_the_device_takes_the_checkpoints_with_it(kept, fresh, monkeypatch):
    first, second, third = states(3)
    kept.answer(Request(first, QUESTIONS))
    started = kept.start([kept.plan(Request(second, QUESTIONS))])

    def broken(*_):
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(np, "asarray", broken)
        with pytest.raises(RuntimeError, match="the device is gone"):
            started()
    assert kept.checkpoint_bytes == 0
    request = Request(third, QUESTIONS)
    answers = kept.answer(request)
    assert answers.usage.resumed_state_tokens == 0
    assert largest_difference([answers], [fresh.answer(request)]) <= EXACT
    assert kept.answer(request).usage.resumed_state_tokens > 0


def test_a_round_that_cannot_start_gives_everything_back(kept, monkeypatch):
    first, second = states(2)
    kept.answer(Request(first, QUESTIONS))
    used = kept.checkpoint_bytes

    def broken(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(kept.executables, "dispatch", broken)
        with pytest.raises(MemoryError):
            kept.answer(Request(second, QUESTIONS))
    assert kept.checkpoint_bytes == used
    assert kept.answer(Request(second, QUESTIONS)).usage.resumed_state_tokens > 0


def test_neither_dispatch_nor_store_compiles_again(kept):
    """Any mix runs in the two executables that are there."""
    for state in (*states(3), *states(2, about="vase")):
        kept.answer(Request(state, QUESTIONS))
    kept.answer(Request("Short.", QUESTIONS))
    assert sorted(capacity.is_growing for capacity in kept.executables.compiled) == [False, True]


def test_a_round_does_not_go_on_from_what_was_lost_meanwhile(kept, fresh):
    """Another thread's round fails on the device after this one has looked up what it resumes."""
    run = kept.executables
    first, second = (Request(state, {"urgent": URGENT}) for state in states(2))
    kept.answer(first)
    visits = run.growing.enter([kept.plan(second)])
    assert visits[0].resumed
    run.growing.lose()
    with pytest.raises(RuntimeError, match="was lost with a round that failed"):
        run._start_round(visits)
    run.growing.leave(visits, None)
    assert largest_difference([kept.answer(second)], [fresh.answer(second)]) <= EXACT


def test_op_by_op_the_pool_goes_in_and_comes_out(tiny_model, monkeypatch):
    """With a stand-in for the forward, whose ops would each be compiled; `test_ablation` runs those of plain rounds."""
    given = []

    def forward(program, params, metadata, *pool):
        given.append((jax.config.jax_disable_jit, jax.tree.map(np.asarray, pool)))
        reads, labels = metadata.read_rows.size, program.label_ids.size
        return jnp.zeros((reads, labels)), *(jax.tree.map(lambda leaf: leaf + 1, one) for one in pool)

    monkeypatch.setattr(Program, "forward", forward)
    engine = Engine.load(tiny_model, dataclasses.replace(CONFIG, ablation=Ablation(op_by_op=True)))
    for state in states(2):
        engine.answer(Request(state, {"urgent": URGENT}))
    (first, (before,)), (second, (after,)) = given
    assert first and second and before
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one + 1, other), before, after)
    assert engine.checkpoint_counters().hits == 1


class TestRefusals:
    def test_too_few_bytes(self, tiny_model):
        with pytest.raises(ValueError, match="checkpoints of this model take .* bytes at least, got 1,000"):
            Engine.load(tiny_model, EngineConfig(checkpoint_bytes=1_000))

    def test_negative(self):
        with pytest.raises(ValueError, match="checkpoint_bytes must be 0 or more, got -1"):
            EngineConfig(checkpoint_bytes=-1)

    def test_no_placement(self):
        given = SimpleNamespace(**vars(EngineConfig()) | {"placement": None})  # past the checks of types in tests
        with pytest.raises(ValueError, match="placement must be a Placement, got None"):
            EngineConfig.__post_init__(given)

    def test_without_forks(self):
        with pytest.raises(ValueError, match="an engine without forks"):
            EngineConfig(checkpoint_bytes=10**9, ablation=Ablation(forks=False))

    def test_an_engine_without_checkpoints_has_none_to_count(self, fresh):
        assert fresh.checkpoint_bytes == 0
        assert vars(fresh.checkpoint_counters()) == dict.fromkeys(
            ("hits", "misses", "tokens_saved", "saved", "evictions", "spilled", "restored"), 0
        )
        fresh.clear_checkpoints()
