"""The command line: commands, their options and help. It imports nothing that takes time."""

import argparse
import math
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flide_jax.cli.terminal import writing

DTYPES = ("bfloat16", "float32", "float64")

_MOST_PROCESSES = 64
_OF_A_MODEL = ("model", "demo", "dtype", "capacities")
_OF_AN_ENGINE = ("batch_invariant", "checkpoint_gb", "checkpoint_host_gb", "bundle")

_FILE = """
FILE holds requests in System One form, in UTF-8. A .json file is one request, a .jsonl file one request a line.
Any other name, and - (standard input), may hold either. One request:

  {"state": "Order #1182 arrived with a cracked screen.",
   "questions": {
     "urgent": {"type": "noul", "instructions": "Does this need a reply within the hour?"},
     "action": {"type": "choice", "instructions": "What should support do next?",
                "criteria": {"refund": "refund the order", "escalate": null}},
     "anger":  {"type": "score", "criteria": ["calm", "annoyed", "angry"]}}}
"""
_STATUS = """
Exit status:
  0    done
  1    verify: a difference is more than rounding in this dtype explains, or bits that were promised differ
  2    something could not be done: standard error says what and where, unless the reader of the output has left
  130  interrupted
"""


class CommandError(Exception):
    """What was asked on the command line cannot be done; the message says what and where."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as all others are, and whose help does not hide that it cannot be written."""

    def print_help(self, file: Any = None) -> None:
        with writing():
            (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (see {self.prog} --help)")


def parser(version: str) -> argparse.ArgumentParser:
    """The whole command line. `command` in the parsed arguments is the command's name."""
    top = _Parser(
        prog="flide-jax",
        description="Decision models: one state, many questions, answered in one pass by exact state forking.",
        epilog="A first try, with the model that ships with the package: flide-jax ask --demo",
    )
    top.add_argument("--version", action="version", version=f"flide-jax {version}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    ask = _command(commands, "ask", "answer the questions of a request, with a probability for every option")
    _add_engine(ask)
    ask.add_argument(
        "--url", metavar="URL", help="ask a server of System One; its key is read from the environment, FLIDE_JAX_KEY"
    )
    ask.add_argument("--json", action="store_true", help="print one System One response a line instead of tables")

    verify = _command(
        commands,
        "verify",
        "answer every question forked and alone, and compare",
        "Answers every question twice: forked from the state that all questions of its request share, and alone, as a "
        "text of its own. Prints how far the probabilities differ, and exits with status 1 where the difference is "
        "more than rounding in this dtype explains. --batch-invariant implies --same-bits.",
    )
    _add_engine(verify)
    verify.add_argument(
        "--same-bits",
        action="store_true",
        help="also ask every request alone, question by question, in rounds, in other orders and through other "
        "capacities, and say how many answers keep their bits; with --batch-invariant, status 1 if one does not",
    )
    verify.add_argument("--per-question", action="store_true", help="also print a line for each question")
    verify.add_argument(
        "--ladder",
        action="store_true",
        help="change more than that, one thing at a time (the ladder of appendix G in the paper): tokens, company, "
        "order, padding, checkpoints, and the server with no, one and two front-end processes; needs the extra `serve`",
    )

    inspect = _command(
        commands,
        "inspect",
        "draw how requests fork and how they are laid out, or say how much memory they need",
        "Draws each request as a tree and each round as the flat stream that the model reads: rows, key ranges, "
        "chunks, slots of recurrent states, and the capacity it runs in. Needs a model's tokenizer and config only, "
        "not its weights. With --memory, which takes no FILE: the memory of the weights and of a round of each "
        "capacity. Every capacity is compiled for that; no weight is loaded.",
    )
    _add_capacities(inspect)
    inspect.add_argument("--all", action="store_true", help="draw every request, not only those of the first rounds")
    inspect.add_argument(
        "--png",
        metavar="DIR",
        help="also draw the first round there: its trees, stream, mask and tiles of attention; needs the extra `plot`",
    )
    inspect.add_argument("--memory", action="store_true", help="say how much memory the model needs")
    _add_dtype(inspect, "with --memory; ")
    _add_batch_invariant(inspect, "with --memory: ")
    _add_checkpoints(inspect, "with --memory: ")
    inspect.add_argument("--json", action="store_true", help="with --memory: in bytes, as one line of JSON")

    warm = _command(
        commands,
        "warm",
        "compile a model's executables into a bundle",
        "Compiles the executables of all capacities and stores them in a bundle, from which `ask`, `verify` and "
        "`serve` load them with --bundle instead of compiling. A bundle fits one model, dtype, device, version of jax "
        "and of this package, and is refused everywhere else. Loading a bundle may run code that it holds: name only "
        "one that you made. Needs no weights.",
        reads_requests=False,
    )
    _add_dtype(warm)
    _add_capacities(warm)
    _add_batch_invariant(warm)
    _add_checkpoints(warm)
    warm.add_argument("--bundle", type=_directory, metavar="DIR", required=True, help="a new or empty directory")
    warm.add_argument(
        "--processes",
        type=_number(1, _MOST_PROCESSES),
        metavar="N",
        help="processes that compile side by side; default: one for each processor for a GPU, 1 for a CPU",
    )

    serve = _command(
        commands,
        "serve",
        "answer requests over HTTP, as System One",
        "Serves POST /v1/systemone and /v1/systemone/batch, and GET / (a page to ask on), /v1/models, /health, "
        "/metrics and /openapi.json, until SIGTERM or SIGINT; what is in work then is still answered. /health is 503 "
        "until every capacity is there. Needs the extra `serve`.",
        reads_requests=False,
    )
    _add_engine(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1, this machine")
    serve.add_argument("--port", type=_number(0, 65_535), default=8000, help="default: 8000; 0 takes a free one")
    serve.add_argument(
        "--workers",
        type=_number(0, _MOST_PROCESSES),
        default=0,
        metavar="N",
        help="processes that take requests and turn them into tokens, beside the one that holds the device; "
        "default: 0, that one does all of it",
    )
    serve.add_argument("--name", help="what the model is called in requests and responses; default: its own name")
    serve.add_argument(
        "--keys",
        metavar="FILE",
        help="ask clients for a key: one a line, KEY or NAME KEY; also read from the environment, FLIDE_JAX_KEYS",
    )

    convert = _command(
        commands,
        "convert",
        "save a model with its weights fused, to be loaded as they are",
        "Fuses the weights of a checkpoint and saves them with its config, tokenizer and chat template. The directory "
        "stands for the model wherever a model is named, gives the same answers and loads without the fusing.",
        reads_requests=False,
    )
    convert.add_argument("--out", type=_directory, metavar="DIR", required=True, help="a new or empty directory")
    return top


def check(arguments: argparse.Namespace) -> None:
    """Raises CommandError where the arguments name no model, or options that do not go together."""
    if arguments.command == "ask" and arguments.url is not None:
        _check_url(arguments)
        return
    if not arguments.model and not arguments.demo:
        raise CommandError("which model? Give --model DIR or --model ID, or --demo for the small one in this package")
    if getattr(arguments, "checkpoint_host_gb", 0) and not arguments.checkpoint_gb:
        raise CommandError("--checkpoint-host-gb is for checkpoints that were on the device: give --checkpoint-gb too")
    if arguments.command == "verify" and arguments.ladder and arguments.per_question:
        raise CommandError("--per-question compares forks alone, of which --ladder prints one line")
    if arguments.command == "verify" and arguments.ladder and (arguments.same_bits or arguments.batch_invariant):
        raise CommandError("--ladder compares up to rounding, from checkpoints as well; bits are compared without it")
    if arguments.command != "inspect":
        return
    if arguments.memory and arguments.file is not None:
        raise CommandError(f"--memory is about the model alone and reads no requests, but {arguments.file} was given")
    if arguments.png is not None and (not arguments.png or Path(arguments.png).is_file()):
        raise CommandError(f"--png names a directory, not {arguments.png!r}")
    if arguments.memory and arguments.png is not None:
        raise CommandError("--png draws requests, of which --memory reads none")
    if arguments.memory and arguments.all:
        raise CommandError("--all draws requests, of which --memory reads none")
    for option in ("json", "dtype", "batch_invariant", "checkpoint_gb"):
        if not arguments.memory and getattr(arguments, option):
            raise CommandError(f"--{option.replace('_', '-')} goes with --memory only")


def _check_url(arguments: argparse.Namespace) -> None:
    if not arguments.url.startswith(("http://", "https://")):
        raise CommandError(f"--url must begin with http:// or https://, got {arguments.url}")
    for option in (*_OF_A_MODEL, *_OF_AN_ENGINE):
        if getattr(arguments, option):
            raise CommandError(f"--{option.replace('_', '-')} is about a model here, and --url asks a server")


def _command(
    commands: argparse._SubParsersAction, name: str, summary: str, details: str = "", *, reads_requests: bool = True
) -> _Parser:
    command: _Parser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(details or f"{summary.capitalize()}.", width=100),
        epilog=_FILE + _STATUS if reads_requests else _STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if reads_requests:
        command.add_argument("file", nargs="?", metavar="FILE", help="requests; may be left out with --demo")
    model = command.add_mutually_exclusive_group()
    model.add_argument("--model", metavar="DIR|ID", help="a checkpoint: a directory, or an id on the Hugging Face hub")
    example = "; its example without FILE" if reads_requests else ""
    model.add_argument("--demo", action="store_true", help=f"the small model in this package{example}")
    return command


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a number from {least} to {most}, got {text!r}")
        return int(text)

    return read


def _gigabytes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= 1e9 * found < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more, got {text!r}")
    return found


def _directory(text: str) -> str:
    if not text:  # as of a variable that is not set; it would mean the current one
        raise argparse.ArgumentTypeError("names a directory, not ''")
    return text


def _add_engine(command: argparse.ArgumentParser) -> None:
    _add_dtype(command)
    _add_capacities(command)
    _add_batch_invariant(command)
    _add_checkpoints(command)
    command.add_argument(
        "--checkpoint-host-gb",
        type=_gigabytes,
        default=0.0,
        metavar="GB",
        help="host memory for checkpoints that had to make room for others; they come back when they are resumed; "
        "default: 0, none",
    )
    command.add_argument(
        "--bundle",
        type=_directory,
        metavar="DIR",
        help="load executables that `warm` made instead of compiling them",
    )


def _add_checkpoints(command: argparse.ArgumentParser, when: str = "") -> None:
    command.add_argument(
        "--checkpoint-gb",
        type=_gigabytes,
        default=0.0,
        metavar="GB",
        help=f"{when}device memory for checkpoints of growing states: a request whose state begins as a former one's "
        "computes the rest of it alone; default: 0, none",
    )


def _add_batch_invariant(command: argparse.ArgumentParser, when: str = "") -> None:
    command.add_argument(
        "--batch-invariant",
        action="store_true",
        help=f"{when}give every answer the same bits whatever it is answered with; on a CPU, or in bfloat16 on Hopper",
    )


def _add_dtype(command: argparse.ArgumentParser, when: str = "") -> None:
    command.add_argument("--dtype", choices=DTYPES, help=f"{when}default: bfloat16 on an accelerator, float32 on a CPU")


def _add_capacities(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--capacities",
        nargs="+",
        type=int,
        metavar="TOKENS",
        help="lengths of streams that are compiled for, ascending; default: fine steps up to 16,384 on an accelerator, "
        "coarse ones up to 4,096 on a CPU",
    )
