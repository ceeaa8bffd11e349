"""Requests in, answers out."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from flide_jax.checkpoints import Counters
from flide_jax.engine import bundle, stored_states
from flide_jax.engine.ablation import Logits, logits_without_forks
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.executables import Executables, Started
from flide_jax.engine.growing import GrowingStates
from flide_jax.engine.model_directory import demo_directory, describe, find_model
from flide_jax.engine.program import Program, precision
from flide_jax.layout import Capacity
from flide_jax.prompts.plan import Plan
from flide_jax.prompts.planner import Planner
from flide_jax.request import Answers, Request


class Engine:
    """A decision model ready to answer. Threads may share it.

    Attributes:
        name: what the model is called in responses.
        config: how it runs.
        program: what its executables depend on.
        dtype: of its activations and matrices.
        prompt_format: from requests to tokens and from logits to answers.
        max_tokens: longest text, a state and one question, that the model reads.
        planner: what of this a request needs apart from the device.
        executables: what has been compiled or loaded so far, and the ladder of capacities.
    """

    def __init__(self, directory: Path, config: EngineConfig | None = None, *, name: str) -> None:
        """Read a checkpoint directory onto the default device; use `Engine.load` or `Engine.demo`.

        Raises:
            CheckpointError: anything in the directory that cannot be used.
            BundleError: the config names a bundle that cannot be used.
            BudgetError: the config gives too few bytes for the checkpoints of this model, or more than are free.
            ValueError: the config asks for what the machine has not: see `EngineConfig.check_device`.
        """
        self.name = name
        self.config = config or EngineConfig()
        model = describe(directory)
        self.program = program = Program.of(model, self.config)
        program.host_store(self.config)  # too few bytes for it are said before weights are read
        self.dtype = program.dtype
        self.prompt_format = model.prompt_format
        self.max_tokens: int = model.architecture.max_tokens
        self.planner = Planner(self.prompt_format, self.max_tokens, self.config.max_request_tokens)
        # Before the weights, which take longer: a bundle of something else is refused at once.
        stored, capacities = self.config.bundle, program.capacities(self.config.ladder())
        self._bundle = None if stored is None else bundle.Bundle(Path(stored), program, capacities)
        run = program.run if self._bundle is None else self._bundle.run
        self.executables = Executables.of(program, program.load(directory), self.config, run=run)

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
            BundleError: the config's bundle changed since the start, or what is needed of it cannot be loaded.
        """
        return self.answer_all([request])[0]

    def answer_all(self, requests: Sequence[Request]) -> list[Answers]:
        """Answer many requests, as many as fit in each round. Raises as `answer` does, for the first that fails."""
        plans = [self.plan(request) for request in requests]
        started = self.start(plans)
        logits = started()
        return [
            self.planner.answers(request, plan, found, resumed=resumed)
            for request, plan, found, resumed in zip(requests, plans, logits, started.resumed, strict=True)
        ]

    def answers(self, request: Request, plan: Plan, logits: Logits) -> Answers:
        """The answers of one request from its plan's logits. Raises FloatingPointError: a logit is not finite."""
        return self.planner.answers(request, plan, logits)

    def plan(self, request: Request) -> Plan:
        """The tokens of a request. Raises RequestError or NotImplementedError, as `answer` does."""
        return self.planner.plan(request)

    def _growing(self) -> GrowingStates:
        if self.executables.growing is None:
            raise ValueError("this engine keeps no checkpoints: its config has checkpoint_bytes 0")
        return self.executables.growing

    def logits(self, plans: Sequence[Plan]) -> list[Logits]:
        """Label logits [reads, L] of each plan, float32 or float64. Plans share rounds, which changes rounding only.

        Raises BundleError, as `answer` does.
        """
        return self.start(plans)()

    def start(self, plans: Sequence[Plan]) -> Started:
        """Dispatch plans, as `logits` does, and return what waits for their logits. Raises BundleError, as it does."""
        with precision(self.dtype):
            if self.config.ablation.forks:
                return self.executables.start(plans)
            logits = logits_without_forks(plans, self.executables.logits)
        return Started([0] * len(plans), lambda: logits)

    def prepare(self, plan: Plan) -> None:
        """Compile or load what a plan runs in when it is alone, if that is not done yet. Raises BundleError."""
        with precision(self.dtype):
            self.executables.prepare(self.executables.capacity_for(plan))

    @property
    def checkpoint_bytes(self) -> int:
        """Device memory of the checkpoints that are stored or being written."""
        growing = self.executables.growing
        return 0 if growing is None else growing.bytes

    def checkpoint_counters(self) -> Counters:
        """What was found, saved and evicted so far."""
        growing = self.executables.growing
        return Counters() if growing is None else growing.counters()

    def save_checkpoints(self, directory: str | Path) -> int:
        """Save all checkpoints of the device in a new or empty directory, which then holds their texts; how many.

        Raises StoredStatesError: the directory is not empty or cannot be written to.
        """
        growing = self._growing()
        return stored_states.save(Path(directory), growing, self.program, self.executables.params)

    def restore_checkpoints(self, directory: str | Path) -> int:
        """Add the checkpoints that an engine of the same model and dtype saved, as far as there is room; how many.

        Raises StoredStatesError: nothing was saved there, it is damaged, or it is of another model.
        """
        growing = self._growing()
        return stored_states.restore(Path(directory), growing, self.program, self.executables.params)

    def clear_checkpoints(self) -> None:
        """Forget all checkpoints, and those that rounds in flight are writing."""
        if self.executables.growing is not None:
            self.executables.growing.clear()

    def prepare_all(self) -> Iterator[Capacity]:
        """Compile all capacities of the ladder, and of growing rounds, and on a GPU run each once; give each then.

        What the config's bundle has is loaded instead. Raises BundleError: it changed, or cannot be loaded.
        """
        if self.executables.growing is not None:
            self.executables.growing.prepare()
        if self._bundle is not None:
            self.executables.add(self._bundle.load(but=self.executables.compiled))
        for capacity in self.program.capacities(self.executables.ladder):
            with precision(self.dtype):
                self.executables.warm(capacity)
            yield capacity
