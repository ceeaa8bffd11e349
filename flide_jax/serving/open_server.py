"""A server of this process's device: it takes connections at once, and answers when it is given an engine."""

from collections.abc import Callable
from dataclasses import dataclass

from flide_jax.engine import Engine
from flide_jax.engine.scheduler import SchedulerConfig
from flide_jax.serving.front_ends import FrontEnds
from flide_jax.serving.local_device import LocalDevice
from flide_jax.serving.metrics import Metrics
from flide_jax.serving.server import Server, address_of, listen, listen_for_each
from flide_jax.serving.settings import Settings


@dataclass(frozen=True, eq=False)
class OpenServer:
    """A server in this process, or with front ends in processes of their own.

    Attributes:
        running: what serves, once its `run` is awaited.
        metrics: of all its processes.
        address: its URL.
    """

    running: Server | FrontEnds
    metrics: Metrics
    address: str

    def start(self, engine: Engine, *, ahead: bool) -> LocalDevice:
        """Answer with an engine from now on: the device, which is to be closed. `ahead`: see `SchedulerConfig`.

        With front ends it returns when all of them answer, or when the server ends.
        """
        device = LocalDevice(engine, config=SchedulerConfig(ahead=ahead), observe=self.metrics.ran)
        self.metrics.watch_device(device)
        self.running.start(
            engine.planner, device, dtype=engine.dtype.name, batch_invariant=engine.config.batch_invariant
        )
        return device


def open_server(
    settings: Settings, host: str, port: int, *, processes: int, say: Callable[[str], None] = lambda line: None
) -> OpenServer:
    """A server on an address of this machine. Raises OSError: the address cannot be had.

    Args:
        settings: those of every process but for its row.
        host, port: where it listens; port 0 is a free one.
        processes: front ends in processes of their own; 0: this process does all of it.
        say: is told what an operator should know of the front ends.
    """
    metrics = Metrics()
    if processes:
        sockets = listen_for_each(host, port, processes)
        return OpenServer(FrontEnds(settings, sockets, metrics, say=say), metrics, address_of(sockets[0]))
    listening = listen(host, port)
    server = Server.of(settings, listening, counts=metrics)
    metrics.watch_requests(lambda: server.service.room.requests)
    return OpenServer(server, metrics, address_of(listening))
