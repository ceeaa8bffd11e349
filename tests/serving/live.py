"""A server of this process on a socket of its own, and what is sent to it."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from flide_jax.engine import Engine
from flide_jax.engine.model_directory import demo_directory
from flide_jax.engine.scheduler import SchedulerConfig
from flide_jax.serving.admission import Limits
from flide_jax.serving.app import create_app
from flide_jax.serving.front_ends import FrontEnds
from flide_jax.serving.keys import Keys
from flide_jax.serving.local_device import LocalDevice
from flide_jax.serving.metrics import Metrics
from flide_jax.serving.server import Server, address_of, listen, listen_for_each
from flide_jax.serving.service import Service
from flide_jax.serving.settings import Settings


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
def fronting(
    engine: Engine, *, processes: int, keys: Keys | None = None, limits: Limits | None = None
) -> Iterator[tuple[str, FrontEnds, list[str]]]:
    """(URL, server, what went wrong and what was said) of a server with front ends in processes of their own."""
    said: list[str] = []
    metrics = Metrics()
    sockets = listen_for_each("127.0.0.1", 0, processes)
    url = address_of(sockets[0])
    settings = Settings(
        "flide-demo", str(demo_directory()), "1.2.3", "2026-11-30", (keys or Keys()).digests(), limits or Limits()
    )
    fronts = FrontEnds(settings, sockets, metrics, say=said.append)
    device = LocalDevice(engine, config=SchedulerConfig(ahead=False), observe=metrics.ran)
    metrics.watch_device(device)
    thread = threading.Thread(target=lambda: said.append(str(asyncio.run(fronts.run()))))
    thread.start()
    try:
        invariant = engine.config.batch_invariant
        fronts.start(engine.planner, device, dtype=engine.dtype.name, batch_invariant=invariant)
        yield url, fronts, said
    finally:
        fronts.stop()
        thread.join(60)
        device.close()
    assert not thread.is_alive()


@contextlib.contextmanager
def serving(
    engine: Engine | None, *, keys: Keys | None = None, limits: Limits | None = None, ahead: bool = False
) -> Iterator[Live]:
    """A server with this engine, or one that still loads; it has ended when the context ends."""
    metrics = Metrics()
    service = Service("flide-demo", counts=metrics, limits=limits)
    metrics.watch_requests(lambda: service.room.requests)
    app = create_app(service, keys=keys or Keys(), version="1.2.3", release_date="2026-11-30")
    listening = listen("127.0.0.1", 0)
    url = address_of(listening)
    server = Server(app, service, listening)
    device = None
    if engine is not None:
        device = LocalDevice(engine, config=SchedulerConfig(ahead=ahead), observe=metrics.ran)
        metrics.watch_device(device)
        invariant = engine.config.batch_invariant
        server.start(engine.planner, device, dtype=engine.dtype.name, batch_invariant=invariant)
    thread = threading.Thread(target=lambda: asyncio.run(server.run()))
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Live(url, service, client, server)
    finally:
        server.stop()
        thread.join(30)
        if device is not None:
            device.close()
    assert not thread.is_alive()
