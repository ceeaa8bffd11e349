"""The device of another process, as a front end sees it."""

import asyncio
import itertools
from collections.abc import Callable

from flide_jax.prompts.plan import Plan
from flide_jax.serving import frames
from flide_jax.serving.counts import EventList
from flide_jax.serving.device import Outcome
from flide_jax.serving.frames import Message
from flide_jax.serving.refusals import Refusal

PLAN_ARRAYS = ("state", "branches", "branch_lengths", "read_branches", "read_offsets")
"""What goes to the device's process, with the salt."""


class RemoteDevice(EventList):
    """Sends plans to the device's process, and what is counted. All on one event loop.

    Attributes:
        lost: why the device is lost.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self.lost: str | None = None
        self._writer = writer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._seconds_until_free = 1.0

    async def run(self, plan: Plan, namespace: str) -> Outcome:
        """What comes of a plan. Cancelling takes it out of the queue. Raises Refusal."""
        arrays = [getattr(plan, name) for name in PLAN_ARRAYS]
        told = {"namespace": namespace, "salt": plan.salt}
        found = await self._ask(lambda number: frames.pack("run", arrays, number=number, **told))
        if found.kind == "refused":
            raise Refusal(found.fields["status"], found.fields["detail"], found.fields["headers"])
        fields = found.fields
        return Outcome(found.arrays[0], fields["waited"], fields["seconds"], fields["resumed"])

    def check(self) -> str | None:
        """Why the device is lost, None while it works."""
        return self.lost

    def seconds_until_free(self) -> float:
        """About how long it takes for what waits."""
        return self._seconds_until_free

    async def text(self) -> bytes:
        """The metrics of all processes."""
        self.tell_counts()
        found = await self._ask(lambda number: frames.pack("metrics", number=number))
        text: str = found.fields["text"]
        return text.encode()

    def tell_counts(self) -> None:
        """Send what was counted since the last time, which also says that this process lives."""
        self._writer.write(frames.pack("counted", events=self.take()))

    def heard(self, message: Message) -> None:
        """A message of the device's process: an answer to a question of this one, or news."""
        if message.kind == "news":
            self.lost = message.fields["lost"]
            self._seconds_until_free = message.fields["seconds_until_free"]
            return
        asked = self._asked.pop(message.fields["number"], None)
        if asked is not None and not asked.done():
            asked.set_result(message)

    async def _ask(self, question: Callable[[int], bytes]) -> Message:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._writer.write(question(number))
        try:
            return await answer
        except asyncio.CancelledError:
            if self._asked.pop(number, None) is not None:
                self._writer.write(frames.pack("leave", number=number))
            raise
