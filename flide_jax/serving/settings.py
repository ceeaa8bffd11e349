"""What a server is told before it has a model."""

from dataclasses import asdict, dataclass
from typing import Any

from flide_jax.serving.admission import Limits


@dataclass(frozen=True)
class Settings:
    """Of a server in one process, or of one of its front ends.

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
