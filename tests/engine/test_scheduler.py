"""Rounds of many clients on a device that ends them when the test says so, and that fails when the test says so."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait

import pytest

from flide_jax.engine.executables import Started
from flide_jax.engine.scheduler import DeviceLostError, RoundError, RoundReport, Scheduler, SchedulerConfig, _Round
from flide_jax.engine.waiting import Job
from flide_jax.layout import Demand, Ladder
from tests.engine.queued import HeldDevice, mark_of, plan

LADDER = Ladder((64, 256))
PROBE = plan(2, mark=-1)


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def schedule() -> Iterator:
    """schedule(device, **config) -> a scheduler, which is closed at the end"""
    made: list[tuple[HeldDevice, Scheduler]] = []

    def create(device: HeldDevice, *, clock: Clock | None = None, observe=lambda report: None, **config) -> Scheduler:
        options = {"ahead": False} | config
        scheduler = Scheduler(
            device.start,
            LADDER,
            probe=PROBE,
            config=SchedulerConfig(**options),
            observe=observe,
            clock=clock or Clock(),
        )
        made.append((device, scheduler))
        return scheduler

    yield create
    for device, scheduler in made:
        device.release()
        scheduler.close()


def test_everyone_gets_what_is_theirs(schedule):
    scheduler = schedule(HeldDevice(running=True))
    futures = {mark: scheduler.submit(plan(2 + mark % 60, mark), namespace=str(mark % 3)) for mark in range(300)}
    assert {mark: mark_of(future.result(20)) for mark, future in futures.items()} == {m: m for m in range(300)}


def test_a_round_is_formed_from_what_waits(schedule):
    device = HeldDevice()
    scheduler = schedule(device)
    futures = [scheduler.submit(plan(10, 0))]
    first = device.round(0)
    futures += [scheduler.submit(plan(10, mark)) for mark in range(1, 6)]
    assert scheduler.waiting == (5, 50)
    first.ended.set()
    assert device.round(1).marks == [1, 2, 3, 4, 5]
    device.release()
    assert [mark_of(future.result(10)) for future in futures] == list(range(6))


def test_a_short_request_waits_for_no_long_one_but_that_in_flight(schedule):
    device = HeldDevice()
    scheduler = schedule(device, ahead=True)
    longs = [scheduler.submit(plan(1_000, mark)) for mark in range(5)]
    first = device.round(0)
    short = scheduler.submit(plan(10, 99))
    first.ended.set()
    assert device.round(1).marks == [99]
    device.release()
    assert mark_of(short.result(10)) == 99
    wait(longs, 10)
    assert device.marks() == [[0], [99], [1], [2], [3], [4]]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_short_request_waits_for_one_long_one_that_was_passed_over_and_for_no_second(schedule, ahead):
    device = HeldDevice()
    scheduler = schedule(device, ahead=ahead)
    futures = [scheduler.submit(plan(250, 0))]
    device.round(0)
    futures += [scheduler.submit(plan(300, mark)) for mark in (50, 51, 52)]
    # Bounded rounds pass the long ones over until the first of them has waited for PATIENCE times its tokens.
    futures += [scheduler.submit(plan(250, mark)) for mark in range(1, 6)]
    for number in range(4 if ahead else 5):
        device.round(number).ended.set()
    device.round(5)  # in flight, or staged behind one in flight
    futures += [scheduler.submit(plan(250, mark)) for mark in (98, 99)]
    device.release()
    wait(futures, 10)
    assert device.marks() == [[0], [1], [2], [3], [4], [5], [50], [98], [99], [51], [52]]


def test_a_full_round_is_staged_behind_one_in_flight_and_a_long_one_is_not(schedule):
    device = HeldDevice()
    scheduler = schedule(device, ahead=True)
    futures = [scheduler.submit(plan(100, 0))]
    device.round(0)
    futures += [scheduler.submit(plan(1_000, 50)), *(scheduler.submit(plan(100, mark)) for mark in range(1, 6))]
    assert device.round(1).marks == [1, 2]
    device.rounds[0].ended.set()
    assert device.round(2).marks == [3, 4]
    device.release()
    wait(futures, 10)
    assert device.marks() == [[0], [1, 2], [3, 4], [5], [50]]


def test_a_round_that_is_not_full_is_staged_when_that_in_flight_is_about_to_end(schedule):
    device, clock = HeldDevice(), Clock()
    scheduler = schedule(device, ahead=True, clock=clock)
    learning = scheduler.submit(plan(10, 0))
    device.round(0)
    clock.now = 8.0
    device.rounds[0].ended.set()
    learning.result(10)  # a round takes 8 s
    futures = [scheduler.submit(plan(10, 1))]
    device.round(1)
    clock.now = 13.0
    futures += [scheduler.submit(plan(10, mark)) for mark in (2, 3)]
    assert scheduler.waiting == (2, 20) and len(device.rounds) == 2
    clock.now = 15.0
    futures.append(scheduler.submit(plan(10, 4)))  # wakes the scheduler, whose clock stands still
    assert device.round(2).marks[:2] == [2, 3]
    device.release()
    wait(futures, 10)


def test_nothing_is_staged_on_a_device_that_would_run_both_at_once(schedule):
    device = HeldDevice()
    scheduler = schedule(device, ahead=False)
    futures = [scheduler.submit(plan(100, mark)) for mark in range(20)]
    device.round(0)
    assert scheduler.waiting[0] >= 17 and len(device.rounds) == 1
    device.release()
    wait(futures, 10)


def test_what_is_cancelled_does_not_run(schedule):
    device = HeldDevice()
    scheduler = schedule(device)
    running = scheduler.submit(plan(10, 0))
    device.round(0)
    left, stays = scheduler.submit(plan(10, 1)), scheduler.submit(plan(10, 2))
    assert left.cancel() and not running.cancel()
    assert scheduler.waiting == (1, 10)
    device.release()
    assert mark_of(running.result(10)) == 0 and mark_of(stays.result(10)) == 2
    assert device.marks() == [[0], [2]]
    with pytest.raises(CancelledError):
        left.result(0)


@pytest.mark.parametrize("stage", ["refuse", "fail"])
def test_one_failing_request_fails_alone(schedule, stage):
    device = HeldDevice()
    setattr(device, stage, lambda marks: MemoryError("out of memory for SECRET") if 3 in marks else None)
    scheduler = schedule(device)
    first = scheduler.submit(plan(2, 100))
    device.round(0)
    futures = {mark: scheduler.submit(plan(10, mark)) for mark in range(7)}
    device.release()
    assert mark_of(first.result(10)) == 100
    with pytest.raises(RoundError, match="^MemoryError on the device$"):
        futures.pop(3).result(10)
    assert {mark: mark_of(future.result(10)) for mark, future in futures.items()} == {m: m for m in futures}
    assert [-1] in device.marks() and scheduler.lost is None
    assert mark_of(scheduler.submit(plan(10, 8)).result(10)) == 8


def test_a_device_that_fails_known_work_is_lost(schedule):
    device = HeldDevice()
    device.fail = lambda marks: RuntimeError("CUDA_ERROR_ECC")
    scheduler = schedule(device)
    futures = [scheduler.submit(plan(10, mark)) for mark in range(9)]
    device.release()
    for future in futures:
        with pytest.raises(DeviceLostError):
            future.result(10)
    assert scheduler.lost == "the device fails known work: RuntimeError: CUDA_ERROR_ECC"
    with pytest.raises(DeviceLostError):
        scheduler.submit(plan(10))


def test_a_round_that_does_not_end_is_a_lost_device(schedule):
    device, clock = HeldDevice(), Clock()
    scheduler = schedule(device, clock=clock, hang_seconds=60.0)
    hangs = scheduler.submit(plan(10, 0))
    device.round(0)
    waits = scheduler.submit(plan(10, 1))
    clock.now = 59.0
    scheduler.check()
    assert scheduler.lost is None
    clock.now = 61.0
    scheduler.check()
    assert scheduler.lost == "a round of 10 tokens has not ended for 61 s"
    for future in (hangs, waits):
        with pytest.raises(DeviceLostError, match="has not ended"):
            future.result(10)


def test_a_large_round_may_take_longer_before_it_hangs(schedule):
    device, clock = HeldDevice(), Clock()
    scheduler = schedule(device, clock=clock, hang_seconds=60.0)
    done = scheduler.submit(plan(10, 0))
    device.round(0)
    clock.now = 10.0
    device.rounds[0].ended.set()
    done.result(10)
    scheduler.submit(plan(1_000, 1))
    device.round(1)
    clock.now = 200.0
    scheduler.check()
    assert scheduler.lost is None


def test_a_dispatch_that_does_not_end_is_a_lost_device(schedule):
    device, clock = HeldDevice(running=True), Clock()
    entered, leave = threading.Event(), threading.Event()

    def stuck(marks: list[int]) -> None:
        entered.set()
        assert leave.wait(20)

    device.refuse = stuck
    scheduler = schedule(device, clock=clock, start_seconds=900.0)
    future = scheduler.submit(plan(10, 0))
    assert entered.wait(10)
    clock.now = 901.0
    scheduler.check()
    with pytest.raises(DeviceLostError, match="could not be started for 901 s"):
        future.result(10)
    leave.set()


def test_closing_ends_what_is_in_flight_and_fails_what_waits(schedule):
    device = HeldDevice()
    scheduler = schedule(device)
    running = scheduler.submit(plan(10, 0))
    device.round(0)
    waits = scheduler.submit(plan(10, 1))
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    with pytest.raises(DeviceLostError, match="closed"):
        waits.result(10)
    device.release()
    closing.join(10)
    assert mark_of(running.result(0)) == 0 and device.marks() == [[0]]
    with pytest.raises(DeviceLostError, match="closed"):
        scheduler.submit(plan(10))


def test_closing_answers_who_waits_for_a_probe(schedule):
    device, probing, leave = HeldDevice(running=True), threading.Event(), threading.Event()
    device.fail = lambda marks: MemoryError() if 0 in marks else None

    def refuse(marks: list[int]) -> None:
        if marks == [50]:
            probing.set()
            assert leave.wait(20)

    device.refuse = refuse
    scheduler = schedule(device, ahead=True)
    scheduler.submit(plan(10, 1)).result(10)
    stuck = scheduler.submit(plan(10, 50))  # the device's thread is busy, so nothing of what follows is dispatched
    assert probing.wait(10)
    failed = Job(plan(10, 0), "", 0.0, Demand.of(plan(10, 0)))
    with scheduler._changed:
        scheduler._failed(_Round([failed]), MemoryError())
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    with pytest.raises(DeviceLostError, match="closed"):
        failed.future.result(10)
    leave.set()
    closing.join(10)
    assert mark_of(stuck.result(10)) == 50


def test_a_round_that_fails_after_closing_answers_its_requests(schedule):
    device = HeldDevice()
    device.fail = lambda marks: MemoryError()
    scheduler = schedule(device)
    first = scheduler.submit(plan(10, 0))
    device.round(0)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    waits = scheduler_closed(scheduler)
    device.release()
    closing.join(10)
    assert waits and device.marks() == [[0]]
    with pytest.raises(DeviceLostError, match="closed"):
        first.result(10)


def scheduler_closed(scheduler: Scheduler) -> bool:
    """Whether it takes nothing any more, which it is given time for."""
    for _ in range(1_000):
        try:
            scheduler.submit(plan(10, 99)).cancel()
        except DeviceLostError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("part", ["forming", "measuring", "reporting"])
def test_an_error_that_is_no_rounds_is_a_lost_device(schedule, monkeypatch, caplog, part):
    device = HeldDevice()
    secret = "Mrs " + "Robinson"  # in no line of code

    def broken(*arguments: object) -> None:
        raise KeyError(secret)

    def observe(report: RoundReport) -> None:
        if part == "reporting":
            broken()

    scheduler = schedule(device, observe=observe)
    running = scheduler.submit(plan(10, 0))
    device.round(0)
    waits = [scheduler.submit(plan(10, mark)) for mark in (1, 2)]
    if part != "reporting":
        monkeypatch.setattr(scheduler, "_form" if part == "forming" else "_measure", broken)
    device.release()
    wait([running, *waits], 10)
    for future in (running, *waits):
        assert future.done()
    if part != "reporting":
        for future in waits:
            with pytest.raises(DeviceLostError, match="defect"):
                future.result(0)
    for thread in scheduler._threads:
        thread.join(10)
        assert not thread.is_alive()
    assert scheduler.lost == "a defect of the scheduler: KeyError"
    assert "test_scheduler.py" in caplog.text and secret not in caplog.text
    with pytest.raises(DeviceLostError):
        scheduler.submit(plan(10))


def test_a_round_with_too_few_results_has_failed(schedule):
    device = HeldDevice(running=True)
    start = device.start

    def shortened(plans):
        finish = start(plans)
        return Started(finish.resumed, lambda: finish()[:-1] if len(plans) > 1 else finish())

    device.start = shortened  # type: ignore[method-assign]
    scheduler = schedule(device)
    futures = [scheduler.submit(plan(10, mark)) for mark in range(9)]
    assert [mark_of(future.result(10)) for future in futures] == list(range(9))


def test_says_how_long_a_request_waited_and_ran(schedule):
    device, clock = HeldDevice(), Clock()
    scheduler = schedule(device, clock=clock)
    futures = [scheduler.submit(plan(10, 0))]
    device.round(0)
    futures.append(scheduler.submit(plan(10, 1)))
    clock.now = 2.0
    device.rounds[0].ended.set()
    device.round(1)
    clock.now = 5.0
    device.release()
    first, second = (future.result(10) for future in futures)
    assert (first.waited, first.seconds, second.waited, second.seconds) == (0.0, 2.0, 2.0, 3.0)


def test_reports_what_ran(schedule):
    device, clock = HeldDevice(), Clock()
    reports: list[RoundReport] = []
    reported = threading.Event()

    def observe(report: RoundReport) -> None:
        reports.append(report)
        reported.set()

    scheduler = schedule(device, clock=clock, observe=observe)
    assert scheduler.seconds_until(1_000) == 1.0
    scheduler.submit(plan(70, 0))
    device.round(0)
    clock.now = 2.0
    device.release()
    assert reported.wait(10)
    assert reports == [RoundReport(requests=1, tokens=70, capacity_tokens=256, dispatch=0.0, seconds=2.0, waits=[0.0])]
    assert scheduler.seconds_until(640) == pytest.approx(20.0)
