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
from flide_jax.engine.scheduler import SchedulerConfig

try:
    from flide_jax.serving import keys, server
    from flide_jax.serving.app import create_app
    from flide_jax.serving.front_ends import FrontEnds
    from flide_jax.serving.local_device import LocalDevice
    from flide_jax.serving.metrics import Metrics
    from flide_jax.serving.server import Server
    from flide_jax.serving.service import Service
    from flide_jax.serving.worker import Settings
except ModuleNotFoundError as error:
    raise CommandError(f"serve needs the extra `serve` ({error.name} is missing): uv run --extra serve ...") from None

_LOST = 2
_INTERRUPTED = 130


def serve(arguments: Namespace) -> int:
    """Serves until a signal, and returns 0; ends the process with 2 if the device is lost."""
    clients = _read_keys(arguments)
    directory = find_directory(arguments, weights=True)
    name = arguments.name or ("flide-demo" if arguments.demo else Path(arguments.model).resolve().name)
    version, release_date = importlib.metadata.version("flide-jax"), _date_of(directory)
    metrics = Metrics()
    running: Server | FrontEnds
    try:
        if arguments.workers:
            sockets = server.listen_for_each(arguments.host, arguments.port, arguments.workers)
            settings = Settings(name, str(directory), version, release_date, clients.digests())
            running = FrontEnds(settings, sockets, metrics, say=say)
        else:
            sockets = [server.listen(arguments.host, arguments.port)]
            service = Service(name, counts=metrics)
            metrics.watch_requests(lambda: service.room.requests)
            app = create_app(service, keys=clients, version=version, release_date=release_date)
            running = Server(app, service, sockets[0])
    except OSError as error:
        reason = (error.strerror or "").partition(" (while")[0]
        raise CommandError(f"cannot listen on {arguments.host}:{arguments.port}: {reason}") from None
    loading = _Loading(arguments, running, metrics, name, server.address_of(sockets[0]))
    interruptible = server.stopped_by_signals(running, interrupted=lambda: server.end_at_once(_INTERRUPTED))
    with server.access_logged(), interruptible:
        loading.start()
        wrong = asyncio.run(running.run())
    if wrong is not None:
        report(wrong)
        server.end_at_once(_LOST)
    if loading.is_alive():  # The compiler cannot be stopped.
        server.end_at_once(0)
    if loading.error is not None:
        raise loading.error
    if loading.device is not None:
        loading.device.close()
    return 0


class _Loading(threading.Thread):
    """Loads the model while the server already says so.

    Attributes:
        device: that answers, once it is there.
        error: why it is not; the server is stopped then.
    """

    def __init__(
        self, arguments: Namespace, running: Server | FrontEnds, metrics: Metrics, name: str, address: str
    ) -> None:
        super().__init__(name="flide-loading", daemon=True)
        self.device: LocalDevice | None = None
        self.error: Exception | None = None
        self._arguments = arguments
        self._running = running
        self._metrics = metrics
        self._name = name
        self._address = address

    def run(self) -> None:
        try:
            self._load()
        except Exception as error:
            self.error = error
            self._running.stop()

    def _load(self) -> None:
        say(f"{self._address} loads {self._name}")
        engine = load_engine(self._arguments)
        capacities = len(engine.executables.ladder.capacities)
        for number, capacity in enumerate(engine.prepare_all(), 1):
            say(f"{number} of {capacities} capacities compiled, of {capacity.tokens:,} tokens")
        config = SchedulerConfig(ahead=jax.default_backend() != "cpu")
        self.device = LocalDevice(engine, config=config, observe=self._metrics.ran)
        self._metrics.watch_device(self.device)
        self._running.start(engine.planner, self.device, dtype=engine.dtype.name)
        mode = ", batch-invariant" if engine.config.batch_invariant else ""
        say(f"{self._address} serves {self._name}, {engine.dtype.name}{mode}")


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
