"""A server of this process's engine on a free port of this machine, for as long as a context lasts."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from flide_jax.engine import Engine
from flide_jax.engine.scheduler import SchedulerConfig
from flide_jax.serving.app import create_app
from flide_jax.serving.front_ends import FrontEnds
from flide_jax.serving.keys import Keys
from flide_jax.serving.local_device import LocalDevice
from flide_jax.serving.metrics import Metrics
from flide_jax.serving.server import Server, address_of, listen, listen_for_each
from flide_jax.serving.service import Service
from flide_jax.serving.worker import Settings

_HOST, _NAME, _VERSION, _RELEASED = "127.0.0.1", "loopback", "0", "1970-01-01"
_SECONDS_TO_END = 60.0


@contextlib.contextmanager
def serving(engine: Engine, directory: Path, *, processes: int = 0) -> Iterator[str]:
    """The URL of a server with so many front-end processes; 0: this process does all of it.

    `directory` holds the model's tokenizer and template. Raises RuntimeError where the server went wrong meanwhile.
    """
    metrics = Metrics()
    running: Server | FrontEnds
    if processes:
        sockets = listen_for_each(_HOST, 0, processes)
        settings = Settings(_NAME, str(directory), _VERSION, _RELEASED, Keys().digests(), logs=False)
        running = FrontEnds(settings, sockets, metrics, say=lambda line: None)
    else:
        sockets = [listen(_HOST, 0)]
        service = Service(_NAME, counts=metrics)
        metrics.watch_requests(lambda: service.room.requests)
        app = create_app(service, keys=Keys(), version=_VERSION, release_date=_RELEASED)
        running = Server(app, service, sockets[0])
    wrong: list[str | None] = []
    thread = threading.Thread(target=lambda: wrong.append(asyncio.run(running.run())), name="flide-loopback")
    device = LocalDevice(engine, config=SchedulerConfig(ahead=False), observe=metrics.ran)
    metrics.watch_device(device)
    thread.start()
    try:
        running.start(engine.planner, device, dtype=engine.dtype.name)
        yield address_of(sockets[0])
    finally:
        running.stop()
        thread.join(_SECONDS_TO_END)
        device.close()
    if thread.is_alive() or wrong != [None]:
        raise RuntimeError(f"the server did not end as it should: {wrong[0] if wrong else 'it still runs'}")
