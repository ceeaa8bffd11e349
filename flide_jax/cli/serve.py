"""`flide-jax serve`: System One over HTTP."""

import asyncio
import datetime
import importlib.metadata
import logging
import os
import sys
import threading
from argparse import Namespace
from pathlib import Path

import jax

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.model import find_directory, load_engine
from flide_jax.cli.terminal import report, say
from flide_jax.engine.scheduler import SchedulerConfig

try:
    from flide_jax.serving import keys, server
    from flide_jax.serving.app import create_app
    from flide_jax.serving.service import Service
except ModuleNotFoundError as error:
    raise CommandError(f"serve needs the extra `serve` ({error.name} is missing): uv run --extra serve ...") from None

_LOST = 2
_INTERRUPTED = 130


def serve(arguments: Namespace) -> int:
    """Serves until a signal, and returns 0; ends the process with 2 if the device is lost."""
    clients = _read_keys(arguments)
    directory = find_directory(arguments, weights=True)
    service = Service(arguments.name or ("flide-demo" if arguments.demo else Path(arguments.model).resolve().name))
    app = create_app(
        service,
        keys=clients,
        version=importlib.metadata.version("flide-jax"),
        release_date=_date_of(directory),
    )
    try:
        listening = server.listen(arguments.host, arguments.port)
    except OSError as error:
        reason = (error.strerror or "").partition(" (while")[0]
        raise CommandError(f"cannot listen on {arguments.host}:{arguments.port}: {reason}") from None
    _log_to_standard_error()
    running = server.Server(app, service)
    loading = _Loading(arguments, service, running, server.address_of(listening))
    with running.signals(interrupted=lambda: server.end_at_once(_INTERRUPTED)):
        loading.start()
        lost = asyncio.run(running.run(listening))
    if lost is not None:
        report(f"the device is lost: {lost}")
        server.end_at_once(_LOST)
    if loading.is_alive():  # The compiler cannot be stopped.
        server.end_at_once(0)
    if loading.error is not None:
        raise loading.error
    service.close()
    return 0


class _Loading(threading.Thread):
    """Loads the model while the server already says so.

    Attributes:
        error: why that failed; the server is stopped then.
    """

    def __init__(self, arguments: Namespace, service: Service, running: server.Server, address: str) -> None:
        super().__init__(name="flide-loading", daemon=True)
        self.error: Exception | None = None
        self._arguments = arguments
        self._service = service
        self._running = running
        self._address = address

    def run(self) -> None:
        try:
            self._load()
        except Exception as error:
            self.error = error
            self._running.stop()

    def _load(self) -> None:
        say(f"{self._address} loads {self._service.name}")
        engine = load_engine(self._arguments)
        capacities = len(engine.executables.ladder.capacities)
        for number, capacity in enumerate(engine.prepare_all(), 1):
            say(f"{number} of {capacities} capacities compiled, of {capacity.tokens:,} tokens")
        self._service.start(engine, config=SchedulerConfig(ahead=jax.default_backend() != "cpu"))
        say(f"{self._address} serves {self._service.name}, {self._service.dtype}")


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


def _log_to_standard_error() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access = logging.getLogger("flide_jax.access")
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False
