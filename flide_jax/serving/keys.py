"""Keys of clients, as `Authorization: Bearer KEY`."""

import hashlib
import hmac
from pathlib import Path

from flide_jax.serving import refusals

ENVIRONMENT = "FLIDE_JAX_KEYS"


class Keys:
    """The keys that a server takes, each the key of a name. Without any, everyone may ask.

    Only digests are kept, and a key is compared with all of them, so that the time it takes tells nothing.
    """

    def __init__(self, keys: dict[str, str] | None = None) -> None:
        """Keys: key -> the name of whose it is."""
        self._names = {_digest(key): name for key, name in (keys or {}).items()}

    def __len__(self) -> int:
        return len(self._names)

    def digests(self) -> dict[str, str]:
        """Digests in hexadecimal -> names, for another process."""
        return {digest.hex(): name for digest, name in self._names.items()}

    @classmethod
    def of_digests(cls, digests: dict[str, str]) -> "Keys":
        """What `digests` gave."""
        found = cls()
        found._names = {bytes.fromhex(digest): name for digest, name in digests.items()}
        return found

    def name_of(self, authorization: str | None) -> str | None:
        """Whose key it is; None where no keys are asked for. Raises Refusal: no key, or a wrong one."""
        if not self._names:
            return None
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise refusals.no_key("a key is needed: Authorization: Bearer KEY")
        digest = _digest(key.strip())
        found = [name for known, name in self._names.items() if hmac.compare_digest(known, digest)]
        if not found:
            raise refusals.no_key("the key is not valid")
        return found[0]


def read_keys(file: Path | None, environment: str | None) -> Keys:
    """Keys of a file and of the environment variable, one a line: `KEY`, or `NAME KEY`; `#` begins a comment.

    Raises:
        ValueError: a line that is neither, a file with no key in it or not in UTF-8, or a key that is given twice.
        OSError: the file cannot be read.
    """
    places = [("the environment", environment or "")]
    if file is not None:
        try:
            places.append((str(file), file.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            raise ValueError(f"{file}: not UTF-8") from None
    keys: dict[str, str] = {}
    for place, text in places:
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split("#", 1)[0].split()
            if len(words) > 2:
                raise ValueError(f"{place}, line {number}: must be KEY or NAME KEY")
            if words:
                if words[-1] in keys:
                    raise ValueError(f"{place}, line {number}: this key stands twice")
                # Without a name a key is known by the beginning of its digest, which tells nothing of it.
                keys[words[-1]] = words[0] if len(words) == 2 else _digest(words[-1]).hex()[:8]
    if file is not None and not keys:
        raise ValueError(f"{file}: no key in it")
    return Keys(keys)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
