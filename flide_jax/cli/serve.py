"""`flide-jax serve`: System One over HTTP."""

import asyncio
import datetime
import importlib.metadata
import os
import threading
from argparse import Namespace
from pathlib import Path

import jax

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.model import find_directory, load_engine
from flide_jax.cli.terminal import report, say

try:
    from flide_jax.serving import keys, server
    from flide_jax.serving.local_device import LocalDevice
    from flide_jax.serving.open_server import OpenServer, open_server
    from flide_jax.serving.settings import Settings
except ModuleNotFoundError as error:
    raise CommandError(f"serve needs the extra `serve` ({error.name} is missing): uv run --extra serve ...") from None

_LOST = 2
_INTERRUPTED = 130


def serve(arguments: Namespace) -> int:
    """Serves until a signal, and ends the process with 0; with 2 if the device is lost."""
    clients = _read_keys(arguments)
    directory = find_directory(arguments, weights=True)
    name = arguments.name or ("flide-demo" if arguments.demo else Path(arguments.model).resolve().name)
    version = importlib.metadata.version("flide-jax")
    settings = Settings(name, str(directory), version, _date_of(directory), clients.digests())
    try:
        opened = open_server(settings, arguments.host, arguments.port, processes=arguments.workers, say=say)
    except OSError as error:
        reason = (error.strerror or "").partition(" (while")[0]
        raise CommandError(f"cannot listen on {arguments.host}:{arguments.port}: {reason}") from None
    loading = _Loading(arguments, opened, name)
    stopped = server.stopped_by_signals(opened.running, interrupted=lambda: server.end_at_once(_INTERRUPTED))
    with server.logged_to_standard_error(), stopped:
        loading.start()
        wrong = asyncio.run(opened.running.run())
    if wrong is not None:
        report(wrong)
        server.end_at_once(_LOST)
    if loading.error is not None:
        raise loading.error
    # Threads may still load, compile, unpack or tokenise what nobody waits for any more; Python would wait for them.
    server.end_at_once(0)


class _Loading(threading.Thread):
    """Loads the model while the server already says so.

    Attributes:
        device: that answers, once it is there.
        error: why it is not; the server is stopped then.
    """

    def __init__(self, arguments: Namespace, opened: OpenServer, name: str) -> None:
        super().__init__(name="flide-loading", daemon=True)
        self.device: LocalDevice | None = None
        self.error: Exception | None = None
        self._arguments = arguments
        self._opened = opened
        self._name = name

    def run(self) -> None:
        try:
            self._load()
        except Exception as error:
            self.error = error
            self._opened.running.stop()

    def _load(self) -> None:
        say(f"{self._opened.address} loads {self._name}")
        engine = load_engine(self._arguments)
        capacities = len(engine.program.capacities(engine.executables.ladder))
        for number, capacity in enumerate(engine.prepare_all(), 1):
            say(f"{number} of {capacities} capacities ready, of {capacity.tokens:,} tokens")
        self.device = self._opened.start(engine, ahead=jax.default_backend() != "cpu")
        mode = ", batch-invariant" if engine.config.batch_invariant else ""
        say(f"{self._opened.address} serves {self._name}, {engine.dtype.name}{mode}")


def _read_keys(arguments: Namespace) -> keys.Keys:
    try:
        file = None if arguments.keys is None else Path(arguments.keys)
        return keys.read_keys(file, os.environ.get(keys.ENVIRONMENT))
    except ValueError as error:
        raise CommandError(str(error)) from None


def _date_of(directory: Path) -> str:
    """The day of the weights' files, the nearest thing to a release that a directory has."""
    files = [file.stat().st_mtime for file in directory.glob("*.safetensors")] or [directory.stat().st_mtime]
    return datetime.datetime.fromtimestamp(max(files), datetime.UTC).date().isoformat()
