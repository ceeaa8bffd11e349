"""A front-end process: HTTP, JSON, words and tokens. It holds no weights, and knows of no accelerator.

`front_ends` starts it as `python -m flide_jax.serving.worker CHANNEL LISTENING TALLY`: descriptors of the socket to the
device's process, of a socket that takes connections, and of the file in which processes tell what they have in work.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flide_jax.prompts.format import PromptFormat
from flide_jax.prompts.planner import Planner
from flide_jax.serving import frames
from flide_jax.serving.admission import Limits, shared_tally
from flide_jax.serving.app import create_app
from flide_jax.serving.keys import Keys
from flide_jax.serving.remote_device import RemoteDevice
from flide_jax.serving.server import Server, access_logged
from flide_jax.serving.service import Service

_ORPHANED, _BROKEN = 1, 2
_SECONDS_BETWEEN_COUNTS = 0.25


@dataclass(frozen=True)
class Settings:
    """What a front end is told when it starts.

    Attributes:
        name: what the model is called.
        directory: of its tokenizer and template.
        version, release_date: as for `create_app`.
        keys: digests of clients' keys.
        limits: of the whole server.
        drain_seconds: for what is in work when it is told to end.
        row: of the tally, which is this process's.
        processes: that take requests.
        loaded: whether the model is.
        logs: whether it writes a line for each request to standard error.
    """

    name: str
    directory: str
    version: str
    release_date: str
    keys: dict[str, str]
    limits: Limits = Limits()
    drain_seconds: int = 30
    row: int = 0
    processes: int = 1
    loaded: bool = False
    logs: bool = True

    def to_json(self) -> dict[str, Any]:
        """For a message."""
        return asdict(self)

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> "Settings":
        """What `to_json` gave."""
        return cls(**fields | {"limits": Limits(**fields["limits"])})


def main(channel: int, listening: int, tally: int) -> None:
    """Serves until it is told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to all processes; the device's decides.
    asyncio.run(_serve(socket.socket(fileno=channel), socket.socket(fileno=listening), tally))


async def _serve(channel: socket.socket, listening: socket.socket, descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    if (first := await frames.read(reader)) is None:
        return
    settings = Settings.of_json(first.fields)
    device = RemoteDevice(writer)
    tally = shared_tally(descriptor, settings.processes)
    service = Service(settings.name, counts=device, limits=settings.limits, tally=tally, row=settings.row)
    app = create_app(
        service,
        keys=Keys.of_digests(settings.keys),
        version=settings.version,
        release_date=settings.release_date,
    )
    server = Server(app, service, listening, drain_seconds=settings.drain_seconds)
    signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
    started = asyncio.Event()
    tasks = [
        asyncio.create_task(_listen(reader, writer, device, service, server, started, Path(settings.directory))),
        asyncio.create_task(_tell_counts(device)),
    ]
    for task in tasks:
        task.add_done_callback(_end_if_broken)
    if settings.loaded:
        await started.wait()  # Until then connections wait, too.
    with access_logged() if settings.logs else contextlib.nullcontext():
        await server.run()
    for task in tasks:
        task.cancel()
    device.tell_counts()
    await writer.drain()
    service.close()


async def _listen(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    device: RemoteDevice,
    service: Service,
    server: Server,
    started: asyncio.Event,
    directory: Path,
) -> None:
    # Beside the weights, which the device's process loads, and which take longer.
    loading = asyncio.ensure_future(asyncio.to_thread(PromptFormat.load, directory))
    while (message := await frames.read(reader)) is not None:
        match message.kind:
            case "start":
                fields = message.fields
                planner = Planner(await loading, fields["max_tokens"], fields["max_request_tokens"])
                service.start(planner, device, dtype=fields["dtype"])
                started.set()
                writer.write(frames.pack("started"))
            case "drain":
                server.stop()
            case _:
                device.heard(message)
    os._exit(_ORPHANED)  # Without a device there is nothing to wait for, and a new server may want the port.


def _end_if_broken(task: asyncio.Task[None]) -> None:
    """Nobody waits for these tasks, and without them the process would go on deaf or dumb."""
    if not task.cancelled() and (error := task.exception()) is not None:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(f"flide-jax: error: a front end cannot go on: {message}", file=sys.stderr, flush=True)
        os._exit(_BROKEN)


async def _tell_counts(device: RemoteDevice) -> None:
    while True:
        device.tell_counts()
        await asyncio.sleep(_SECONDS_BETWEEN_COUNTS)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
