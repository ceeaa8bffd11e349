"""A server of this process's engine on a free port of this machine, for as long as a context lasts."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from flide_jax.engine import Engine
from flide_jax.serving.open_server import open_server
from flide_jax.serving.settings import Settings

_SECONDS_TO_END = 60.0


@contextlib.contextmanager
def serving(engine: Engine, directory: Path, *, processes: int = 0) -> Iterator[str]:
    """The URL of a server with so many front-end processes; 0: this process does all of it.

    `directory` holds the model's tokenizer and template. Raises RuntimeError where the server went wrong meanwhile.
    """
    settings = Settings(engine.name, str(directory), version="0", release_date="1970-01-01", keys={}, logs=False)
    server = open_server(settings, "127.0.0.1", 0, processes=processes)
    wrong: list[str | None] = []
    thread = threading.Thread(target=lambda: wrong.append(asyncio.run(server.running.run())), name="flide-loopback")
    thread.start()
    device = None
    try:
        device = server.start(engine, ahead=False)
        yield server.address
    finally:
        server.running.stop()
        thread.join(_SECONDS_TO_END)
        if device is not None:
            device.close()
    if thread.is_alive() or wrong != [None]:
        raise RuntimeError(f"the server did not end as it should: {wrong[0] if wrong else 'it still runs'}")
