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
from pathlib import Path

from flide_jax.prompts.format import PromptFormat
from flide_jax.prompts.planner import Planner
from flide_jax.serving import frames
from flide_jax.serving.admission import shared_tally
from flide_jax.serving.remote_device import RemoteDevice
from flide_jax.serving.server import Server, end_at_once, logged_to_standard_error
from flide_jax.serving.service import Service
from flide_jax.serving.settings import Settings

_ORPHANED, _BROKEN = 1, 2
_SECONDS_BETWEEN_COUNTS = 0.25


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
    server = Server.of(settings, listening, counts=device, tally=shared_tally(descriptor, settings.processes))
    service = server.service
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
    with logged_to_standard_error() if settings.logs else contextlib.nullcontext():
        await server.run()
    for task in tasks:
        task.cancel()
    device.tell_counts()
    await writer.drain()
    end_at_once(0)  # Threads may still unpack or tokenise what nobody waits for any more.


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
                service.start(planner, device, dtype=fields["dtype"], batch_invariant=fields["batch_invariant"])
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
