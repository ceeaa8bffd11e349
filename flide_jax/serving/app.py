"""The server's routes, as an ASGI application."""

import asyncio
import json
import logging
import math
import re
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flide_jax.serving import openapi, refusals
from flide_jax.serving.admission import Limits, Share
from flide_jax.serving.bodies import ClientLeftError, read_body
from flide_jax.serving.keys import Keys
from flide_jax.serving.page import read_page
from flide_jax.serving.refusals import Refusal
from flide_jax.serving.service import ALIAS, Call, Service

CLIENT_LEFT = 499
_DEFECT = 500
_TEXT_OF_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_ID_HEADERS = ("x-request-id", "x-typesafe-request-id")

_log = logging.getLogger(__name__)
_access = logging.getLogger("flide_jax.access")

type Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(service: Service, *, keys: Keys, version: str, release_date: str) -> ASGIApp:
    """The application.

    Args:
        service: what answers.
        keys: of clients.
        version: of this package.
        release_date: of the model, as `/v1/models` names it: YYYY-MM-DD.
    """

    def asking(answer: Callable[[Call], Coroutine[Any, Any, bytes]]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            try:
                return await answered(request)
            except Refusal as refusal:
                service.counts.failed(refusal.status)
                raise
            except ClientLeftError:
                raise
            except Exception:
                service.counts.failed(_DEFECT)
                raise

        async def answered(request: Request) -> Response:
            namespace = keys.name_of(request.headers.get("authorization"))
            service.check_status()
            seconds = _seconds(request.headers.get("x-request-timeout-ms"), service)
            deadline = asyncio.get_running_loop().time() + seconds
            if request.headers.get("content-type", "").lower().startswith("multipart/"):
                raise refusals.images()
            with service.room.open() as share:
                body = await _body(request, share, service.limits, seconds)
                host = request.client.host if request.client else ""
                encoding = request.headers.get("content-encoding")
                call = Call(body, encoding, namespace or host, share, deadline, seconds)
                return _json(await _while_connected(request.receive, answer(call)))

        return endpoint

    async def models(request: Request) -> Response:
        keys.name_of(request.headers.get("authorization"))
        description = "a decision model, served by flide-jax with exact state forking"
        model = {"name": service.name, "description": description, "release_date": release_date}
        return _json(json.dumps({"models": [model]}).encode())

    async def health(request: Request) -> Response:
        found = {
            "status": service.status,
            "model": service.name,
            "dtype": service.dtype,
            "batch_invariant": service.batch_invariant,
            "version": version,
        }
        return _json(json.dumps(found).encode(), 200 if service.status == "ok" else 503)

    async def metrics(request: Request) -> Response:
        return Response(await service.counts.text(), headers={"content-type": _TEXT_OF_METRICS})

    about = openapi.describe(name=service.name, alias=ALIAS, version=version, limits=service.limits)

    async def described(request: Request) -> Response:
        return _json(json.dumps(about).encode())

    content, headers_of_page = read_page()

    async def page(request: Request) -> Response:
        return Response(content, headers=headers_of_page)

    routes = [
        Route("/", _answering(page)),
        Route("/v1/systemone", _answering(asking(service.answer)), methods=["POST"]),
        Route("/v1/systemone/batch", _answering(asking(service.answer_batch)), methods=["POST"]),
        Route("/v1/models", _answering(models)),
        Route("/health", _answering(health)),
        Route("/metrics", _answering(metrics)),
        Route("/openapi.json", _answering(described)),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})
    app.router.redirect_slashes = False
    return _Observed(app, service, {route.path for route in routes})


def _answering(endpoint: Endpoint) -> Endpoint:
    """The endpoint, whose errors are responses."""

    async def answering(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refusal as refusal:
            return Response(refusal.body(), refusal.status, dict(refusal.headers), "application/json")
        except ClientLeftError:
            return Response(status_code=CLIENT_LEFT)
        except Exception as error:
            # Its message may hold text of a request, the lines of code do not.
            places = "".join(traceback.format_tb(error.__traceback__))
            _log.error("defect: %s in request %s\n%s", type(error).__name__, request.state.id, places)
            defect = refusals.failed("a defect of the server")
            return Response(defect.body(), defect.status, media_type="application/json")

    return answering


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = json.dumps({"detail": error.detail}).encode()
    return Response(body, error.status_code, error.headers, "application/json")


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _seconds(header: str | None, service: Service) -> float:
    """How long a client waits. Raises Refusal: the header is not a positive number of milliseconds."""
    if header is None:
        return service.limits.default_seconds
    try:
        milliseconds = float(header)
    except ValueError:
        milliseconds = math.nan
    if not (0 < milliseconds < math.inf):
        raise refusals.misused("x-request-timeout-ms must be a positive number of milliseconds")
    return min(milliseconds / 1_000, service.limits.most_seconds)


async def _body(request: Request, share: Share, limits: Limits, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(min(seconds, limits.body_seconds)):
            declared = request.headers.get("content-length")
            return await read_body(
                request.receive,
                limit=limits.body_bytes,
                declared=declared,
                take=lambda size: share.take(size=size),
            )
    except TimeoutError:
        raise refusals.too_slow("the body did not arrive in time") from None


async def _while_connected[T](receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which ends when the client leaves. Raises ClientLeftError: it has left."""
    task = asyncio.current_task()
    assert task is not None
    working = True

    def leave(left: asyncio.Task[None]) -> None:
        if working and not left.cancelled():
            task.cancel()

    leaving = asyncio.create_task(_disconnected(receive))
    leaving.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.done() and not leaving.cancelled():
            task.uncancel()
            raise ClientLeftError from None
        raise
    finally:
        working = False
        leaving.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Observed:
    """The application with an id for each request, in its headers and in one line of the log, and counted."""

    def __init__(self, app: ASGIApp, service: Service, routes: set[str]) -> None:
        self._app = app
        self._service = service
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = CLIENT_LEFT
        request_id = _request_id(scope)
        scope.setdefault("state", {})["id"] = request_id

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), request_id.encode()) for name in _ID_HEADERS),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - begin
            # A path may hold anything; only those that are known are named.
            route = scope["path"] if scope["path"] in self._routes else "other"
            self._service.counts.responded(route, status, seconds)
            level = logging.DEBUG if route in ("/health", "/metrics") else logging.INFO
            _access.log(level, "%s %s %d %.1f ms %s", scope["method"], route, status, seconds * 1_000, request_id)


def _request_id(scope: Scope) -> str:
    """The client's id for the request if it is a plain word, else a new one."""
    headers = dict(scope["headers"])
    for name in _ID_HEADERS:
        given = headers.get(name.encode(), b"").decode("latin-1")
        if _ID.fullmatch(given):
            return given
    return uuid.uuid4().hex
