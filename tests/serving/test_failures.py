"""What fails, and what goes on all the same; and how a server ends."""

import copy
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from flide_jax.engine.executables import Started
from flide_jax.prompts.plan import Plan
from flide_jax.prompts.planner import Planner
from flide_jax.request import Request, YesNo
from tests.serving.asked import ASKED, NOUL, asked, is_closed, until
from tests.serving.live import serving

SECRET = "Mrs Robinson"


def test_a_request_with_logits_that_are_not_finite_fails_alone(tiny_engine, caplog):
    broken = copy.copy(tiny_engine)

    def start(plans):
        found = tiny_engine.logits(plans)
        sick = tiny_engine.plan(Request("sick", {"q": YesNo()})).state
        broken = [
            np.full_like(logits, np.nan) if np.array_equal(plan.state, sick) else logits
            for plan, logits in zip(plans, found, strict=True)
        ]
        return Started([0] * len(plans), lambda: broken)

    broken.start = start
    with serving(broken) as live, caplog.at_level(logging.DEBUG):
        sick, well = live.batch({"state": "sick", "questions": {"q": {"type": "noul"}}}, ASKED)
        assert (sick["error"]["status"], sick["error"]["detail"]["error_type"]) == (500, "internal_error")
        assert "answers" in well


def test_a_request_that_the_device_fails_with_fails_alone(tiny_engine):
    broken = copy.copy(tiny_engine)
    poison = tiny_engine.plan(Request("poison", {"q": YesNo()})).state

    def start(plans):
        if any(np.array_equal(plan.state, poison) for plan in plans):
            raise MemoryError("RESOURCE_EXHAUSTED")
        return tiny_engine.start(plans)

    broken.start = start
    with serving(broken) as live:
        poisoned = {"state": "poison", "questions": {"q": {"type": "noul"}}}
        found = live.batch(*[ASKED] * 3, poisoned, *[ASKED] * 3)
        assert [one.get("error", {}).get("status") for one in found] == [None] * 3 + [500] + [None] * 3
        assert live.client.get("/health").status_code == 200


def test_a_lost_device_ends_the_server(tiny_engine):
    broken = copy.copy(tiny_engine)

    def start(plans):
        raise RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE")

    broken.start = start
    with serving(broken) as live:
        assert live.ask(ASKED).status_code == 503
        until(lambda: live.service.status == "failed")
        health = live.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert live.service.check() == "the device fails known work: RuntimeError: CUDA_ERROR_ECC_UNCORRECTABLE"
        until(lambda: is_closed(live))


def test_a_server_that_is_stopped_answers_what_it_has(held):
    engine, device = held
    with serving(engine) as live, ThreadPoolExecutor(3) as others:
        running = [others.submit(live.ask, ASKED) for _ in range(3)]
        until(lambda: live.service.room.requests == 3)
        live.server.stop()
        assert live.service.status == "draining"
        until(lambda: is_closed(live))
        device.release()
        assert [one.result(30).status_code for one in running] == [200] * 3


def test_a_defect_says_nothing_of_the_request(tiny_engine, caplog):
    class Broken(Planner):
        def plan(self, request: Request) -> Plan:
            raise KeyError(request.state)

    known = tiny_engine.planner
    with serving(tiny_engine) as live, caplog.at_level(logging.DEBUG):
        live.service._planner = Broken(known.prompt_format, known.max_tokens, known.max_request_tokens)
        found = live.ask(asked(NOUL) | {"state": SECRET})
    assert (found.status_code, found.json()["detail"]["error_type"]) == (500, "internal_error")
    assert "defect: KeyError in request" in caplog.text and "test_failures.py" in caplog.text
    assert SECRET not in found.text + caplog.text
