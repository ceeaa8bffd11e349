"""`flide-jax ask --url`: requests to a server of System One, answers out. It loads no model."""

import json
import os
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from rich.text import Text

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.console import open_console
from flide_jax.cli.rows import AnswerError, Failure, Group, Row, attempt
from flide_jax.cli.terminal import report, write_lines
from flide_jax.drawing.answers import draw_answers
from flide_jax.request import Request, RequestError
from flide_jax.serving.protocol import read_response

KEY = "FLIDE_JAX_KEY"
"""The environment variable with the key for the server. Arguments are seen by everyone on the machine."""
_AT_A_TIME = 16
_SECONDS = 600.0
_TRIES, _LONGEST_PAUSE = 5, 60.0
_COME_BACK = (429, 503)


@dataclass(frozen=True)
class Answered:
    """A request and the response to it."""

    request: Request
    response: dict[str, Any]


type Result = tuple[Row, Answered | Failure]


def ask_server(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Answers every row, as `ask` does, and returns 2 if one of them has no answer."""
    key = os.environ.get(KEY)
    headers = {"content-type": "application/json", "x-request-timeout-ms": f"{1e3 * _SECONDS:.0f}"}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    try:
        client = httpx.Client(base_url=arguments.url, headers=headers, timeout=_SECONDS)
    except httpx.InvalidURL as error:
        raise CommandError(f"{arguments.url}: {error}") from None
    status = 0
    with client, ThreadPoolExecutor(_AT_A_TIME) as threads:
        for group in groups:
            outcomes = list(threads.map(partial(_answer, client, arguments.url), group))
            if arguments.json:
                write_lines(_json_lines(outcomes))
            else:
                _draw(outcomes)
            for _, outcome in outcomes:
                if isinstance(outcome, Failure):
                    report(outcome.message)
                    status = 2
    return status


def _answer(client: httpx.Client, url: str, item: tuple[Row, Request | Failure]) -> Result:
    row, request = item
    if isinstance(request, Failure):
        return row, request

    def answered() -> Answered:
        return Answered(request, _ask(client, url, row.text))

    return row, attempt(row, answered)


def _ask(client: httpx.Client, url: str, text: bytes) -> dict[str, Any]:
    """The server's response. Raises RequestError or AnswerError: it has none; CommandError: there is no server."""
    for left in reversed(range(_TRIES)):
        try:
            found = client.post("v1/systemone", content=text)
        except httpx.HTTPError as error:
            raise CommandError(f"{url}: {str(error) or type(error).__name__}") from None
        if found.status_code not in _COME_BACK or not left:
            break
        pause = found.headers.get("retry-after", "")
        time.sleep(min(_LONGEST_PAUSE, float(pause)) if pause.isdecimal() else 1.0)
    try:
        content = found.json()
    except ValueError:
        content = None
    if found.status_code == 200 and isinstance(content, dict):
        return content
    raise _error(found.status_code, content.get("detail") if isinstance(content, dict) else None)


def _error(status: int, detail: Any) -> RequestError | AnswerError:
    """What the server has against a request, as if it had been said here."""
    match detail:
        case [{"loc": ["body", *location], "msg": str(rule)}, *_]:
            return RequestError([key for key in location if isinstance(key, (str, int))], rule)
        case {"message": str(message)} | str(message):
            return AnswerError(f"the server says {status}: {message}")
    return AnswerError(f"the server says {status}")


def _json_lines(outcomes: Iterable[Result]) -> Iterator[str]:
    for row, outcome in outcomes:
        if isinstance(outcome, Answered):
            yield json.dumps(outcome.response, ensure_ascii=False, allow_nan=False)
        elif row.line is not None:
            yield outcome.to_json()


def _draw(outcomes: list[Result]) -> None:
    console = open_console()
    for i, (row, outcome) in enumerate(outcomes):
        if isinstance(outcome, Failure):
            continue
        answers = attempt(row, partial(read_response, outcome.request, outcome.response))
        if isinstance(answers, Failure):
            outcomes[i] = row, answers
            continue
        tokens = f"{answers.usage.input_tokens:,} tokens, {outcome.response.get('model')}"
        console.print(Text(row.label, style="bold"), Text(tokens))
        console.print(draw_answers(answers))
        console.print()
