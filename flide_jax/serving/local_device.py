"""The device of this process."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from flide_jax.engine import Engine
from flide_jax.engine.scheduler import DeviceLostError, RoundError, RoundReport, Scheduler, SchedulerConfig
from flide_jax.prompts.plan import Plan
from flide_jax.request import Request, YesNo
from flide_jax.serving import refusals
from flide_jax.serving.device import Outcome

PROBE = Request("The device works.", {"works": YesNo("Does it?")})


class LocalDevice:
    """An engine behind its scheduler."""

    def __init__(
        self,
        engine: Engine,
        *,
        config: SchedulerConfig,
        observe: Callable[[RoundReport], None] = lambda report: None,
    ) -> None:
        """`observe` is told of each round, on a thread of its own."""
        self._engine = engine
        self._scheduler = Scheduler(
            engine.start,
            engine.executables.growing_ladder,
            probe=engine.plan(PROBE),
            config=config,
            demand=engine.executables.demand,
            observe=observe,
        )
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="flide-compiler")

    async def run(self, plan: Plan, namespace: str) -> Outcome:
        """What comes of a plan. Raises Refusal."""
        try:
            if self._engine.config.checkpoint_bytes and plan.salt is not None:
                plan = dataclasses.replace(plan, salt=_joined(namespace, plan.salt))
            executables = self._engine.executables
            if not executables.growing_ladder.largest.fits(executables.demand(plan)):
                # Compiled beside the device's thread, which meanwhile goes on with the others.
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._compiler, self._engine.prepare, plan)
            ran = await asyncio.wrap_future(self._scheduler.submit(plan, namespace=namespace))
        except RoundError:
            raise refusals.failed("the device failed with this request") from None
        except DeviceLostError:
            raise refusals.unavailable("the device is lost") from None
        return Outcome(ran.logits, ran.waited, ran.seconds, ran.resumed)

    def check(self) -> str | None:
        """Why the device is lost, None while it works; to be called from time to time."""
        self._scheduler.check()
        return self._scheduler.lost

    def seconds_until_free(self) -> float:
        """About how long it takes for what waits."""
        return self._scheduler.seconds_until(self._scheduler.waiting[1])

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests that wait for a round, and their tokens."""
        return self._scheduler.waiting

    @property
    def compiled(self) -> int:
        """Executables that are there."""
        return len(self._engine.executables.compiled)

    def close(self) -> None:
        """End all threads."""
        self._scheduler.close()
        self._compiler.shutdown(cancel_futures=True)


def _joined(namespace: str, salt: str) -> str:
    """A salt that no other pair has: nobody resumes the states of others, whatever salt they send."""
    return json.dumps([namespace, salt])
