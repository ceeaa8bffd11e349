"""Files that decide what an engine does, and so are read only where nobody else can have written them."""

import os
import stat
from pathlib import Path


def check_owner(path: Path, status: os.stat_result, *, error: type[ValueError], because: str) -> None:
    """Raises `error`: a file or directory of another user than us or root, or one that others may write to.

    `because`: why that is refused.
    """
    if status.st_uid not in (0, os.geteuid()):
        raise error(f"{path}: belongs to user {status.st_uid}; {because}, so they must be ours")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise error(f"{path}: others may write to it, and {because} (chmod go-w would do)")


def read(file: Path, *, error: type[ValueError], because: str) -> bytes:
    """A file, after a look at whose it is: at the very file that is then read. Raises as `check_owner`, and where it
    cannot be read."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            check_owner(file, os.fstat(opened.fileno()), error=error, because=because)
            return opened.read()
    except OSError as failed:
        if file.is_symlink():
            raise error(f"{file}: is a symbolic link") from None
        raise error(f"{file}: {failed.strerror}") from None
