"""What an operator sees at `/metrics`, in Prometheus' text format."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from flide_jax.engine.scheduler import RoundReport
from flide_jax.serving.counts import Event
from flide_jax.serving.local_device import LocalDevice

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_COUNTS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        r = self._registry
        self._responses = Counter("flide_responses", "HTTP responses", ("route", "status"), registry=r)
        self._response_seconds = Histogram(
            "flide_response_seconds", "From the head of a request to its end", ("route",), registry=r, buckets=_SECONDS
        )
        self._failures = Counter(
            "flide_failures", "Requests, alone and in batches, that failed", ("status",), registry=r
        )
        self._questions = Counter("flide_questions", "Questions answered", registry=r)
        self._state_tokens = Counter(
            "flide_state_tokens", "Tokens of states: computed, or resumed from a checkpoint", ("kind",), registry=r
        )
        self._text_tokens = Counter(
            "flide_text_tokens", "Tokens of texts: kept from before, or made anew", ("kind",), registry=r
        )
        self._tokens = Counter("flide_tokens", "Rows of rounds: asked for, or padding", ("kind",), registry=r)
        self._open = Gauge("flide_open_requests", "Requests in work, from their head to their answer", registry=r)
        self._waiting = Gauge("flide_waiting_requests", "Requests that wait for a round", registry=r)
        self._waiting_tokens = Gauge("flide_waiting_tokens", "Tokens of the requests that wait", registry=r)
        self._capacities = Gauge("flide_capacities_compiled", "Executables that are compiled", registry=r)
        self._plan = Histogram("flide_plan_seconds", "From a body to tokens", registry=r, buckets=_SECONDS)
        self._wait = Histogram(
            "flide_wait_seconds", "From tokens to the start of a round on the device", registry=r, buckets=_SECONDS
        )
        self._dispatch = Histogram(
            "flide_dispatch_seconds", "Laying a round out and giving it to the device", registry=r, buckets=_SECONDS
        )
        self._round = Histogram("flide_round_seconds", "A round on the device", registry=r, buckets=_SECONDS)
        self._round_requests = Histogram("flide_round_requests", "Requests in a round", registry=r, buckets=_COUNTS)

    async def text(self) -> bytes:
        """The text format."""
        return generate_latest(self._registry)

    def watch_requests(self, opened: Callable[[], int]) -> None:
        """Requests in work, asked for when the metrics are."""
        self._open.set_function(opened)

    def watch_device(self, device: LocalDevice) -> None:
        """What waits for the device, and its executables, asked for when the metrics are."""
        self._waiting.set_function(lambda: device.waiting[0])
        self._waiting_tokens.set_function(lambda: device.waiting[1])
        self._capacities.set_function(lambda: device.compiled)

    def replay(self, events: Iterable[Event]) -> None:
        """What another process counted."""
        methods: dict[str, Callable[..., None]] = {
            method.__name__: method
            for method in (self.responded, self.planned, self.tokenised, self.answered, self.failed)
        }
        for name, *arguments in events:
            methods[name](*arguments)

    def responded(self, route: str, status: int, seconds: float) -> None:
        """A response was sent, or its client left (499)."""
        self._responses.labels(route, str(status)).inc()
        self._response_seconds.labels(route).observe(seconds)

    def planned(self, seconds: float) -> None:
        """A request was turned into tokens."""
        self._plan.observe(seconds)

    def tokenised(self, kept: int, made: int) -> None:
        """So many tokens of texts were kept from before, and so many were made."""
        self._text_tokens.labels("kept").inc(kept)
        self._text_tokens.labels("made").inc(made)

    def answered(self, questions: int, computed: int, resumed: int) -> None:
        """A request was answered; so many tokens of its state were computed, and so many came from a checkpoint."""
        self._questions.inc(questions)
        self._state_tokens.labels("computed").inc(computed)
        self._state_tokens.labels("resumed").inc(resumed)

    def failed(self, status: int) -> None:
        """A request was not answered."""
        self._failures.labels(str(status)).inc()

    def ran(self, report: RoundReport) -> None:
        """A round ran."""
        self._dispatch.observe(report.dispatch)
        self._round.observe(report.seconds)
        self._round_requests.observe(report.requests)
        self._tokens.labels("asked").inc(report.tokens)
        self._tokens.labels("padding").inc(report.capacity_tokens - report.tokens)
        for seconds in report.waits:
            self._wait.observe(seconds)
