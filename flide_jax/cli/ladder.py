"""`flide-jax verify --ladder`: the same answers whatever stands around a question, up to the server."""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence

import httpx

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.console import open_console
from flide_jax.cli.model import find_directory, load_engine
from flide_jax.cli.rows import Group, Planned, plan_group
from flide_jax.cli.terminal import note
from flide_jax.drawing.comparison import draw_ladder
from flide_jax.ladder import Ladder, Probabilities, Rung, answers_of
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


def climb(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Tries every rung with all rows. Returns 1 past the tolerance of the dtype, else 2 if a row could not be read."""
    engine = load_engine(arguments)
    planned: list[Planned] = []
    status = 0
    for group in groups:
        readable = list(plan_group(engine.plan, group))
        planned += readable
        status = status if len(readable) == len(group) else 2
    if not planned:
        return 2
    ladder = Ladder.of(engine, [request for _, request, _ in planned])
    rungs = []
    for rung in _all_rungs(ladder, [row.text for row, *_ in planned], arguments):
        note(f"{rung.name}: {rung.largest:.3g}")
        rungs.append(rung)
    tolerance = TOLERANCES[engine.dtype.name]
    open_console().print(draw_ladder(rungs, dtype=engine.dtype.name, tolerance=tolerance))
    return 1 if max(rung.largest for rung in rungs) > tolerance else status


def _all_rungs(ladder: Ladder, bodies: Sequence[bytes], arguments: Namespace) -> Iterator[Rung]:
    yield from ladder.climb()
    directory = find_directory(arguments, weights=True)
    for processes, says in _SERVERS.items():
        with serving(ladder.engine, directory, processes=processes) as url:
            found = list(ladder.compared(_served(ladder, bodies, url)))
        yield Rung(f"server, {processes}", f"over HTTP, {says}", max(found), len(found))


def _served(ladder: Ladder, bodies: Sequence[bytes], url: str) -> list[Probabilities]:
    headers = {"content-type": "application/json", "x-request-timeout-ms": f"{1e3 * _SECONDS:.0f}"}
    found = []
    with httpx.Client(base_url=url, headers=headers, timeout=_SECONDS) as client:
        for request, body in zip(ladder.requests, bodies, strict=True):
            response = client.post("/v1/systemone", content=body)
            if response.status_code != 200:
                raise CommandError(f"the server of this model says {response.status_code}: {response.text}")
            found.append(answers_of(dict(read_response(request, response.json()))))
    return found
