"""Requests in, answers out."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flide_jax.engine import bundle
from flide_jax.engine.ablation import Logits, logits_without_forks
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.executables import Executables
from flide_jax.engine.model_directory import demo_directory, describe, find_model
from flide_jax.engine.program import Program, precision
from flide_jax.layout import Capacity, Demand
from flide_jax.prompts.plan import Plan
from flide_jax.request import Answers, Request, TooLongError, Usage


class Engine:
    """A decision model ready to answer. Threads may share it.

    Attributes:
        name: what the model is called in responses.
        config: how it runs.
        program: what its executables depend on.
        dtype: of its activations and matrices.
        prompt_format: from requests to tokens and from logits to answers.
        max_tokens: longest text, a state and one question, that the model reads.
        executables: what has been compiled so far, and the ladder of capacities.
    """

    def __init__(self, directory: Path, config: EngineConfig | None = None, *, name: str) -> None:
        """Read a checkpoint directory onto the default device; use `Engine.load` or `Engine.demo`.

        Raises:
            CheckpointError: anything in the directory that cannot be used.
            BundleError: the config names a bundle that cannot be used.
        """
        self.name = name
        self.config = config or EngineConfig()
        model = describe(directory)
        self.program = program = Program.of(model, self.config)
        ladder = self.config.ladder()
        self.dtype = program.dtype
        self.prompt_format = model.prompt_format
        self.max_tokens: int = model.architecture.max_tokens
        # Before the weights, which take longer: a bundle of something else is refused at once.
        stored = self.config.bundle
        compiled = {} if stored is None else bundle.load(Path(stored), program, ladder.capacities)
        self.executables = Executables(
            program.forward,
            program.load(directory),
            ladder,
            conv_taps=program.conv_taps,
            ablation=self.config.ablation,
            compiled=compiled,
        )

    @classmethod
    def load(cls, model: str | Path, config: EngineConfig | None = None) -> "Engine":
        """Load a checkpoint from a directory, or from the Hugging Face hub by its id.

        Raises:
            CheckpointError: no such model, or one that cannot be used; the message says what and where.
            BundleError: the config names a bundle that cannot be used.
        """
        return cls(find_model(model), config, name=Path(model).resolve().name)

    @classmethod
    def demo(cls, config: EngineConfig | None = None) -> "Engine":
        """The small model that ships with the package: it runs anywhere and knows only its own little world."""
        return cls(demo_directory(), config, name="flide-demo")

    def answer(self, request: Request) -> Answers:
        """Answer every question of a request in one pass.

        Raises:
            RequestError: longer than the model or the engine takes, or more options than there are labels.
            NotImplementedError: the model's chat template rewrites the text of this request.
            FloatingPointError: the model gave a logit that is not finite.
        """
        return self.answer_all([request])[0]

    def answer_all(self, requests: Sequence[Request]) -> list[Answers]:
        """Answer many requests, as many as fit in each round. Raises as `answer` does, for the first that fails."""
        plans = [self.plan(request) for request in requests]
        return [self.answers(*item) for item in zip(requests, plans, self.logits(plans), strict=True)]

    def answers(self, request: Request, plan: Plan, logits: Logits) -> Answers:
        """The answers of one request from its plan's logits. Raises FloatingPointError: a logit is not finite."""
        usage = Usage(input_tokens=plan.tokens, output_tokens=len(request.questions))
        return Answers(self.prompt_format.answers(request, logits), usage=usage)

    def plan(self, request: Request) -> Plan:
        """The tokens of a request. Raises RequestError or NotImplementedError, as `answer` does."""
        plan = self.prompt_format.plan(request)
        longest = plan.state.size + int(plan.branch_lengths.max(initial=0))
        if longest > self.max_tokens:
            raise TooLongError(
                (), f"the state and its longest question have {longest} tokens, the model reads {self.max_tokens}"
            )
        if plan.tokens > self.config.max_request_tokens:
            raise TooLongError(
                (), f"the request has {plan.tokens} tokens, the engine takes {self.config.max_request_tokens}"
            )
        return plan

    def logits(self, plans: Sequence[Plan]) -> list[Logits]:
        """Label logits [reads, L] of each plan, float32 or float64. Plans share rounds, which changes rounding only."""
        return self.start(plans)()

    def start(self, plans: Sequence[Plan]) -> Callable[[], list[Logits]]:
        """Dispatch plans, as `logits` does, and return what waits for their logits."""
        with precision(self.dtype):
            if self.config.ablation.forks:
                return self.executables.start(plans)
            logits = logits_without_forks(plans, self.executables.logits)
        return lambda: logits

    def prepare(self, plan: Plan) -> None:
        """Compile what a plan runs in when it is alone, if that is not done yet."""
        with precision(self.dtype):
            self.executables.prepare(self.executables.ladder.smallest_for(Demand.of(plan)))

    def prepare_all(self) -> Iterator[Capacity]:
        """Compile all capacities of the ladder, and give each when it is there."""
        for capacity in self.executables.ladder.capacities:
            with precision(self.dtype):
                self.executables.prepare(capacity)
            yield capacity
