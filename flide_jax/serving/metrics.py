"""What an operator sees at `/metrics`, in Prometheus' text format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from flide_jax.engine.scheduler import RoundReport

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_COUNTS = (1, 2, 4, 8, 16, 32, 64)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
        self._tokens = Counter("flide_tokens", "Rows of rounds: asked for, or padding", ("kind",), registry=r)
        self._open = Gauge("flide_open_requests", "Requests in work, from their head to their answer", registry=r)
        self._waiting = Gauge("flide_waiting_requests", "Requests that wait for a round", registry=r)
        self._waiting_tokens = Gauge("flide_waiting_tokens", "Tokens of the requests that wait", registry=r)
        self._capacities = Gauge("flide_capacities_compiled", "Executables that are compiled", registry=r)
        self._plan = Histogram("flide_plan_seconds", "From a body to tokens", registry=r, buckets=_SECONDS)
        self._wait = Histogram(
            "flide_wait_seconds", "From tokens to the start of a round", registry=r, buckets=_SECONDS
        )
        self._round = Histogram("flide_round_seconds", "A round on the device", registry=r, buckets=_SECONDS)
        self._round_requests = Histogram("flide_round_requests", "Requests in a round", registry=r, buckets=_COUNTS)

    def text(self) -> bytes:
        """The text format."""
        return generate_latest(self._registry)

    def watch(
        self, *, opened: Callable[[], int], waiting: Callable[[], tuple[int, int]], compiled: Callable[[], int]
    ) -> None:
        """Read when the metrics are asked for: requests in work; those that wait, and their tokens; executables."""
        self._open.set_function(opened)
        self._waiting.set_function(lambda: waiting()[0])
        self._waiting_tokens.set_function(lambda: waiting()[1])
        self._capacities.set_function(compiled)

    def responded(self, route: str, status: int, seconds: float) -> None:
        """A response was sent, or its client left (499)."""
        self._responses.labels(route, str(status)).inc()
        self._response_seconds.labels(route).observe(seconds)

    def planned(self, seconds: float) -> None:
        """A request was turned into tokens."""
        self._plan.observe(seconds)

    def answered(self, questions: int) -> None:
        """A request was answered."""
        self._questions.inc(questions)

    def failed(self, status: int) -> None:
        """A request was not answered."""
        self._failures.labels(str(status)).inc()

    def ran(self, report: RoundReport) -> None:
        """A round ran."""
        self._round.observe(report.seconds)
        self._round_requests.observe(report.requests)
        self._tokens.labels("asked").inc(report.tokens)
        self._tokens.labels("padding").inc(report.capacity_tokens - report.tokens)
        for seconds in report.waits:
            self._wait.observe(seconds)
