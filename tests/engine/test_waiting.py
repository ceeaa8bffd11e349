"""Who goes next: every job once, no round over its bound, in order, fair, and short before long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flide_jax.engine.round_times import RoundTimes
from flide_jax.engine.waiting import PATIENCE, Job, Waiting
from flide_jax.layout import Capacity, Demand, Ladder
from tests.engine.queued import plan

BOUND = Capacity.of_tokens(256)


def job(tokens: int, namespace: str = "") -> Job:
    return Job(plan(tokens), namespace, 0.0, Demand.of(plan(tokens)))


def fits(jobs: list[Job]) -> bool:
    demand = jobs[0].demand
    for other in jobs[1:]:
        demand += other.demand
    return BOUND.fits(demand)


@given(st.lists(st.tuples(st.integers(2, 400), st.sampled_from("abc")), max_size=40))
def test_every_job_runs_once_in_order_and_within_the_bound(arrivals):
    waiting = Waiting()
    jobs = [job(*arrival) for arrival in arrivals]
    for one in jobs:
        waiting.add(one)
    assert (len(waiting), waiting.tokens) == (len(jobs), sum(tokens for tokens, _ in arrivals))
    taken: list[Job] = []
    while members := waiting.take(BOUND):
        assert len(members) == 1 or fits(members)
        taken += members
    assert len(waiting) == 0 and set(taken) == set(jobs) and len(taken) == len(jobs)
    for namespace in "abc":
        for short in (True, False):

            def chosen(found: list[Job], namespace: str = namespace, short: bool = short) -> list[Job]:
                return [one for one in found if one.namespace == namespace and BOUND.fits(one.demand) == short]

            assert chosen(taken) == chosen(jobs)


def test_short_ones_go_before_long_ones_that_came_first():
    waiting = Waiting()
    long, short = job(1_000), job(10)
    waiting.add(long)
    waiting.add(short)
    assert waiting.take(BOUND) == [short]
    assert waiting.take(BOUND) == [long]


def test_a_long_one_is_passed_over_for_a_while_only():
    waiting = Waiting()
    long = job(300)
    waiting.add(long)
    passed = 0
    while True:
        waiting.add(job(250))
        members = waiting.take(BOUND)
        if members == [long]:
            break
        passed += members[0].demand.tokens
    assert PATIENCE * 300 <= passed < PATIENCE * 300 + 250


def test_short_ones_lose_their_turn_to_a_long_one_that_was_passed_over():
    """So that nothing is staged ahead of it while a round is in flight."""
    waiting = Waiting()
    long = job(300)
    waiting.add(long)
    assert not waiting.short_turn(BOUND), "only a long one waits"
    passed = 0
    while passed < PATIENCE * 300:
        waiting.add(job(250))
        assert waiting.short_turn(BOUND)
        passed += sum(one.demand.tokens for one in waiting.take_short(BOUND))
    waiting.add(job(250))
    assert not waiting.short_turn(BOUND)
    assert waiting.take(BOUND) == [long]


def test_namespaces_take_turns_by_tokens():
    waiting = Waiting()
    for _ in range(20):
        waiting.add(job(100, "many"))
    few = [job(100, "few") for _ in range(2)]
    for one in few:
        waiting.add(one)
    taken = [one for _ in range(3) for one in waiting.take(BOUND)]
    assert [one for one in taken if one.namespace == "few"] == few


def test_a_pause_earns_nothing():
    waiting = Waiting()
    for _ in range(10):
        waiting.add(job(100, "busy"))
        waiting.take(BOUND)
    for _ in range(4):
        waiting.add(job(100, "busy"))
        waiting.add(job(100, "back"))
    taken = [one.namespace for _ in range(2) for one in waiting.take(BOUND)]
    assert sorted(taken) == ["back", "back", "busy", "busy"]


def test_what_is_removed_does_not_run():
    waiting = Waiting()
    first, second = job(10), job(10)
    waiting.add(first)
    waiting.add(second)
    assert waiting.remove(first) and not waiting.remove(first)
    assert waiting.take(BOUND) == [second]
    assert waiting.take(BOUND) == []


def test_says_when_a_round_is_full():
    waiting = Waiting()
    waiting.add(job(1_000))
    waiting.add(job(200))
    assert not waiting.fills(BOUND)
    waiting.add(job(100))
    assert waiting.fills(BOUND)


LADDER = Ladder((64, 128, 256, 512))


def test_rounds_are_bounded_in_time():
    times = RoundTimes(LADDER, budget=0.1)
    assert times.bound().tokens == 512 and times.estimate(64) is None
    times.learn(64, 0.03)
    assert times.bound().tokens == 128  # in proportion, 256 would take 0.12 s
    times.learn(128, 0.04)
    assert times.bound().tokens == 256
    times.learn(128, 5.0)  # one slow run changes nothing
    assert times.estimate(256) == pytest.approx(0.08)


def test_the_smallest_capacity_is_always_allowed():
    times = RoundTimes(LADDER, budget=0.1)
    times.learn(64, 3.0)
    assert times.bound().tokens == 64
