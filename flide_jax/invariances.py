"""What answers must not depend on, changed one thing at a time: from tokens up to checkpoints (paper, appendix G).

Each change answers the same questions again with one thing different that must not matter, and keeps the largest
difference of a probability. What an early change finds wrong shows in the later ones, too; so the first that fails says
where to look. The server's changes stand in `flide_jax.cli.invariances`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float64

from flide_jax.checkpoints import Placement
from flide_jax.checkpoints.store import PAGES_PER_SLOT
from flide_jax.engine import Engine
from flide_jax.engine.ablation import Logits
from flide_jax.engine.executables import Executables
from flide_jax.engine.program import precision
from flide_jax.layout import Demand
from flide_jax.models.pool import bytes_of
from flide_jax.prompts.plan import Plan
from flide_jax.request import Answer, Request
from flide_jax.verification import compare, probabilities
from pallas_kernels.fork_attention.metadata import PAGE_ROWS

type Probabilities = dict[str, Float64[np.ndarray, " _"]]
"""Of the options of each question of a request, by the question's name."""

_ALL_BUT_THE_END = Placement(shortest=2, margin=1, step=1)


@dataclasses.dataclass(frozen=True)
class Change:
    """One thing that was different, and how far answers moved.

    Attributes:
        name: what it is called.
        says: what was different.
        largest: the largest difference of a probability that it made.
        questions: how many were compared.
    """

    name: str
    says: str
    largest: float
    questions: int


@dataclasses.dataclass(frozen=True, eq=False)
class Baseline:
    """Requests with their answers, all of them together in shared rounds: what every change is compared with.

    Attributes:
        engine: what answers.
        requests, plans: what was asked.
        answers: of each request.
    """

    engine: Engine
    requests: Sequence[Request]
    plans: Sequence[Plan]
    answers: Sequence[Probabilities]

    @classmethod
    def of(cls, engine: Engine, requests: Sequence[Request]) -> "Baseline":
        """Answers the requests. Raises as `Engine.answer_all` does."""
        plans = [engine.plan(request) for request in requests]
        logits = engine.logits(plans)
        return cls(engine, requests, plans, list(map(engine_answers(engine), requests, logits)))

    def changes(self) -> Iterator[Change]:
        """What each change made, one after another."""
        for name, (says, differences) in CHANGES.items():
            found = list(differences(self))
            yield Change(name, says, max(found), len(found))

    def compared(self, found: Sequence[Probabilities]) -> Iterator[float]:
        """The largest difference of each question from other answers to all requests."""
        for given, expected in zip(found, self.answers, strict=True):
            yield from (float(np.abs(given[name] - expected[name]).max()) for name in expected)


def answers_of(answers: dict[str, Answer]) -> Probabilities:
    """The probabilities of answers."""
    return {name: probabilities(answer) for name, answer in answers.items()}


def engine_answers(engine: Engine) -> Callable[[Request, Logits], Probabilities]:
    """From a request and the logits of its plan to its probabilities."""
    return lambda request, logits: answers_of(engine.prompt_format.answers(request, logits))


def other_tokens(baseline: Baseline) -> Iterator[float]:
    """Each question planned by itself: 1 where its text has other tokens than among the others, else 0."""
    for request, plan in zip(baseline.requests, baseline.plans, strict=True):
        for index, (name, question) in enumerate(request.questions.items()):
            alone = baseline.engine.plan(Request(request.state, {name: question}))
            given = np.concatenate([alone.state, alone.branches])
            yield float(not np.array_equal(given, plan.alone(index).state))


def each_alone(baseline: Baseline) -> Iterator[float]:
    """Each question as a text of its own in a round of its own."""
    engine = baseline.engine
    for request, plan in zip(baseline.requests, baseline.plans, strict=True):
        (logits,) = engine.logits([plan])
        yield from (one.largest_difference for one in compare(engine, request, plan, logits))


def each_round(baseline: Baseline) -> Iterator[float]:
    """Each request in a round of its own."""
    logits = [baseline.engine.logits([plan])[0] for plan in baseline.plans]
    return baseline.compared(list(map(engine_answers(baseline.engine), baseline.requests, logits)))


def backwards(baseline: Baseline) -> Iterator[float]:
    """Requests, and the questions of each, in reverse."""
    requests = [Request(one.state, dict([*one.questions.items()][::-1])) for one in baseline.requests]
    logits = baseline.engine.logits([baseline.engine.plan(request) for request in reversed(requests)])[::-1]
    return baseline.compared(list(map(engine_answers(baseline.engine), requests, logits)))


def padded(baseline: Baseline) -> Iterator[float]:
    """Each request in the largest capacity, most of which is padding."""
    executables, found = baseline.engine.executables, []
    with precision(baseline.engine.dtype):
        for plan in baseline.plans:
            found += executables.logits_in(executables.ladder.largest_for(Demand.of(plan)), [plan])
    return baseline.compared(list(map(engine_answers(baseline.engine), baseline.requests, found)))


def resumed(baseline: Baseline) -> Iterator[float]:
    """Each request a second time, from a checkpoint of its own state."""
    engine, longest = baseline.engine, max(plan.tokens for plan in baseline.plans)
    one_of_each = engine.program.family.abstract_pool(engine.program.architecture, pages=1, slots=1, dtype=engine.dtype)
    config = dataclasses.replace(
        engine.config,
        checkpoint_bytes=_enough(*bytes_of(one_of_each), tokens=longest),
        placement=_ALL_BUT_THE_END,
        max_request_tokens=longest,
        bundle=None,
    )
    program = engine.program.with_checkpoints(config)
    found = []
    with precision(engine.dtype):
        executables = Executables.of(program, engine.executables.params, config)
        for plan in baseline.plans:
            plan = dataclasses.replace(plan, salt="")
            executables.logits([plan])
            again = executables.start([plan])
            found += again()
            if plan.state.size > 1 and not again.resumed[0]:
                raise AssertionError("a state that had just been kept was not resumed")
    return baseline.compared(list(map(engine_answers(engine), baseline.requests, found)))


def _enough(page_bytes: int, slot_bytes: int, *, tokens: int) -> int:
    """Bytes for two checkpoints of so many tokens, or of as many as a store has pages for a slot."""
    pages = max(PAGES_PER_SLOT, -(-tokens // PAGE_ROWS))
    return 2 * -(-pages // PAGES_PER_SLOT) * (slot_bytes + PAGES_PER_SLOT * page_bytes)


CHANGES: dict[str, tuple[str, Callable[[Baseline], Iterator[float]]]] = {
    "tokens": ("each question planned by itself has the same tokens", other_tokens),
    "forks": ("each question as a text of its own, in a round of its own", each_alone),
    "company": ("each request in a round of its own", each_round),
    "order": ("requests and questions in reverse", backwards),
    "padding": ("each request in the largest capacity", padded),
    "checkpoints": ("each request resumed from its own state", resumed),
}
