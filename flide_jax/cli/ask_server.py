"""`flide-jax ask --url`: requests to a server of System One, answers out. It loads no model."""

import os
import time
from argparse import Namespace
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.outcomes import Answered, Outcome, show
from flide_jax.cli.rows import AnswerError, Failure, Group, Row, attempt
from flide_jax.request import Request, RequestError
from flide_jax.serving.protocol import read_response

KEY = "FLIDE_JAX_KEY"
"""The environment variable with the key for the server. Arguments are seen by everyone on the machine."""
_AT_A_TIME = 16
_SECONDS = 600.0
_TRIES, _LONGEST_PAUSE = 5, 60.0
_COME_BACK = (429, 503)


def ask_server(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Answers every row, as `ask` does, and returns 2 if one of them has no answer; see `show`."""
    key = os.environ.get(KEY)
    headers = {"content-type": "application/json", "x-request-timeout-ms": f"{1e3 * _SECONDS:.0f}"}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    try:
        client = httpx.Client(base_url=arguments.url, headers=headers, timeout=_SECONDS)
    except httpx.InvalidURL as error:
        raise CommandError(f"{arguments.url}: {error}") from None
    except UnicodeEncodeError:
        raise CommandError(f"{KEY}: a key is ASCII") from None
    with client, ThreadPoolExecutor(_AT_A_TIME) as threads:
        answered = (list(threads.map(partial(_answer, client, arguments.url), group)) for group in groups)
        return show(answered, as_json=arguments.json)


def _answer(client: httpx.Client, url: str, item: tuple[Row, Request | Failure]) -> Outcome:
    row, request = item
    return row, request if isinstance(request, Failure) else attempt(row, partial(_answered, client, url, row, request))


def _answered(client: httpx.Client, url: str, row: Row, request: Request) -> Answered:
    response = _ask(client, url, row.text)
    return Answered(read_response(request, response), response, str(response.get("model")))


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
