"""`flide-jax verify --ladder`: the same answers whatever stands around a question, up to the server."""

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence

import httpx

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.console import open_console
from flide_jax.cli.model import find_directory, load_engine
from flide_jax.cli.rows import Group, Planned, plan_group
from flide_jax.cli.terminal import note
from flide_jax.drawing.comparison import draw_changes
from flide_jax.invariances import Baseline, Change, Probabilities, answers_of
from flide_jax.serving.protocol import read_response
from flide_jax.verification import TOLERANCES

try:
    from flide_jax.serving.loopback import serving
except ModuleNotFoundError as error:
    raise CommandError(
        f"--ladder needs the extra `serve` ({error.name} is missing): uv run --extra serve ..."
    ) from None

# Front-end processes, and what that is.
_SERVERS = {0: "in one process", 1: "one front-end process", 2: "two front-end processes"}
_SECONDS = 600.0


def verify_invariances(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Tries every change with all rows. Returns 1 past the tolerance of the dtype, else 2 if a row cannot be read."""
    engine = load_engine(arguments)
    planned: list[Planned] = []
    status = 0
    for group in groups:
        readable = list(plan_group(engine.plan, group))
        planned += readable
        status = status if len(readable) == len(group) else 2
    if not planned:
        return 2
    baseline = Baseline.of(engine, [request for _, request, _ in planned])
    changes = []
    for change in _all_changes(baseline, [row.text for row, *_ in planned], arguments):
        note(f"{change.name}: {change.largest:.3g}")
        changes.append(change)
    tolerance = TOLERANCES[engine.dtype.name]
    open_console().print(draw_changes(changes, dtype=engine.dtype.name, tolerance=tolerance))
    return 1 if max(change.largest for change in changes) > tolerance else status


def _all_changes(baseline: Baseline, bodies: Sequence[bytes], arguments: Namespace) -> Iterator[Change]:
    yield from baseline.changes()
    directory = find_directory(arguments, weights=True)
    for processes, says in _SERVERS.items():
        with serving(baseline.engine, directory, processes=processes) as url:
            found = list(baseline.compared(_served(baseline, bodies, url)))
        yield Change(f"server, {processes}", f"over HTTP, {says}", max(found), len(found))


def _served(baseline: Baseline, bodies: Sequence[bytes], url: str) -> list[Probabilities]:
    headers = {"content-type": "application/json", "x-request-timeout-ms": f"{1e3 * _SECONDS:.0f}"}
    found = []
    with httpx.Client(base_url=url, headers=headers, timeout=_SECONDS) as client:
        for request, body in zip(baseline.requests, bodies, strict=True):
            response = client.post("/v1/systemone", content=_of_any_model(body))
            if response.status_code != 200:
                raise CommandError(f"the server of this model says {response.status_code}: {response.text}")
            found.append(answers_of(dict(read_response(request, response.json()))))
    return found


def _of_any_model(body: bytes) -> bytes:
    """A request without the model that it names: it is asked of this one, as everywhere on the command line."""
    fields = json.loads(body)
    fields.pop("model", None)
    return json.dumps(fields).encode()
