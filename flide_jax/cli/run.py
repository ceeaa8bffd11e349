"""One run of the command: what it sets up, and how each kind of failure ends it."""

import importlib.metadata
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

from flide_jax.cli.arguments import CommandError, check, parser
from flide_jax.cli.rows import read_groups
from flide_jax.cli.terminal import OutputError, note, report, warn, writing

FAILED = 2


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; standard output holds results only.

    Errors of what the user gave (arguments, files, requests, checkpoints) are one line on standard error. Any other
    exception is a defect and keeps its traceback.
    """
    if sys.stdout is None:  # It was closed before the program started.
        return _fail("stdout: closed")
    try:
        try:
            return _run(parser(importlib.metadata.version("flide-jax")).parse_args(arguments))
        finally:  # At the interpreter's exit it would be too late to say that writing failed.
            with writing():
                sys.stdout.flush()
    except CommandError as error:
        return _fail(str(error))
    except OutputError as error:
        return _end_output(error.cause)
    except OSError as error:
        return _fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")


def _run(arguments: Namespace) -> int:
    # Advice of a library about other libraries is not for the user of this command.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("jax._src.xla_bridge").addFilter(_in_one_line)
    logging.getLogger("flide_jax").addHandler(_WARNINGS)
    check(arguments)
    command = _command_without_requests(arguments) or _command_of_requests(arguments)
    try:
        return command()
    except (CommandError, OutputError, OSError):
        raise
    except Exception as error:
        if (message := _refusal(error)) is None:
            raise
        return _fail(message)


def _refusal(error: Exception) -> str | None:
    """What the user is told of an error that is none of the program; None: it is a defect. Takes seconds to import."""
    import jax

    from flide_jax.checkpoints import BudgetError
    from flide_jax.engine.bundle import BundleError
    from flide_jax.models.checkpoint_files import CheckpointError

    if isinstance(error, (BudgetError, BundleError, CheckpointError, FloatingPointError, NotImplementedError)):
        return str(error)
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
        return f"the device has no room: {str(error).splitlines()[0]}"
    return None


# The commands take seconds to import, which a mistyped option or a broken file need not wait for.
def _command_without_requests(arguments: Namespace) -> Callable[[], int] | None:
    match arguments.command:
        case "warm":
            from flide_jax.cli.warm import warm as command
        case "convert":
            from flide_jax.cli.convert import convert as command
        case "serve":
            from flide_jax.cli.serve import serve as command
        case "inspect" if arguments.memory:
            from flide_jax.cli.memory import inspect_memory as command
        case _:
            return None
    return partial(command, arguments)


def _command_of_requests(arguments: Namespace) -> Callable[[], int]:
    groups = read_groups(arguments)
    match arguments.command:
        case "ask" if arguments.url:
            from flide_jax.cli.ask_server import ask_server as command
        case "ask":
            from flide_jax.cli.ask import ask as command
        case "verify" if arguments.ladder:
            from flide_jax.cli.invariances import verify_invariances as command
        case "verify":
            from flide_jax.cli.verify import verify as command
        case _:
            from flide_jax.cli.inspect import inspect as command
    return partial(command, arguments, groups)


class _Warnings(logging.Handler):
    """What the package logs for those who use it, in the command's own words."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


_WARNINGS = _Warnings(logging.WARNING)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Where a GPU cannot be used although jax was installed for one, jax says so with a traceback and goes on."""
    if record.exc_info is None:
        return True
    note(f"no GPU is used: {str(record.exc_info[1]).splitlines()[0]}")
    return False


def _fail(message: str) -> int:
    report(message)
    return FAILED


def _end_output(error: OSError) -> int:
    """Nothing more can be written: to a reader that has left there is nothing to say, a full disk is an error."""
    # What is still buffered would fail again when the interpreter exits, with a traceback.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return FAILED if isinstance(error, BrokenPipeError) else _fail(f"stdout: {error.strerror}")
