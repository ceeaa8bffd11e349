"""A server of this process on a socket of its own, and what is sent to it."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from flide_jax.engine import Engine
from flide_jax.engine.scheduler import SchedulerConfig
from flide_jax.serving.admission import Limits
from flide_jax.serving.app import create_app
from flide_jax.serving.keys import Keys
from flide_jax.serving.server import Server, address_of, listen
from flide_jax.serving.service import Service


@dataclass(frozen=True)
class Live:
    """A server that takes requests.

    Attributes:
        url: its root.
        service: what answers.
        client: of this server.
        server: the server itself.
    """

    url: str
    service: Service
    client: httpx.Client
    server: Server

    @property
    def host_and_port(self) -> tuple[str, int]:
        """For a socket."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def ask(self, body: object, **headers: str) -> httpx.Response:
        """The response to a body, which is JSON unless it is bytes. `x_request_id="a"` sends `x-request-id: a`."""
        content = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post("/v1/systemone", content=content, headers=named)

    def batch(self, *requests: object) -> list:
        """The responses to a batch."""
        found = self.client.post("/v1/systemone/batch", json={"requests": list(requests)})
        assert found.status_code == 200, found.text
        return found.json()["responses"]


@contextlib.contextmanager
def serving(engine: Engine | None, *, keys: Keys | None = None, limits: Limits | None = None) -> Iterator[Live]:
    """A server with this engine, or one that still loads; it has ended when the context ends."""
    service = Service("flide-demo", limits=limits)
    if engine is not None:
        service.start(engine, config=SchedulerConfig(ahead=False))
    app = create_app(service, keys=keys or Keys(), version="1.2.3", release_date="2026-11-30")
    server = Server(app, service)
    listening = listen("127.0.0.1", 0)
    url = address_of(listening)
    thread = threading.Thread(target=lambda: asyncio.run(server.run(listening)))
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Live(url, service, client, server)
    finally:
        server.stop()
        thread.join(30)
        service.close()
    assert not thread.is_alive()
