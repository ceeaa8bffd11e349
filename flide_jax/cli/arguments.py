"""The command line: commands, their options and help. It imports nothing that takes time."""

import argparse
import sys
import textwrap
from typing import Any, NoReturn

from flide_jax.cli.terminal import writing

DTYPES = ("bfloat16", "float32", "float64")

_FILE = """
FILE holds requests in System One form, in UTF-8. A .json file is one request, a .jsonl file one request a line.
Any other name, and - (standard input), may hold either. One request:

  {"state": "Order #1182 arrived with a cracked screen.",
   "questions": {
     "urgent": {"type": "noul", "instructions": "Does this need a reply within the hour?"},
     "action": {"type": "choice", "instructions": "What should support do next?",
                "criteria": {"refund": "refund the order", "escalate": null}},
     "anger":  {"type": "score", "criteria": ["calm", "annoyed", "angry"]}}}

Exit status:
  0    done
  1    verify: a difference is more than rounding in this dtype explains
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
    _add_dtype(ask)
    ask.add_argument("--json", action="store_true", help="print one System One response a line instead of tables")

    verify = _command(
        commands,
        "verify",
        "answer every question forked and alone, and compare",
        "Answers every question twice: forked from the state that all questions of its request share, and alone, as a "
        "text of its own. Prints how far the probabilities differ, and exits with status 1 where the difference is "
        "more than rounding in this dtype explains.",
    )
    _add_dtype(verify)
    verify.add_argument("--per-question", action="store_true", help="also print a line for each question")

    inspect = _command(
        commands,
        "inspect",
        "draw how requests fork and how they are laid out",
        "Draws each request as a tree and each round as the flat stream that the model reads: rows, key ranges, "
        "chunks, slots of recurrent states, and the capacity it runs in. Needs a model's tokenizer and config only, "
        "not its weights.",
    )
    inspect.add_argument("--all", action="store_true", help="draw every request, not only those of the first rounds")
    return top


def check_model(arguments: argparse.Namespace) -> None:
    """Raises CommandError where the arguments name no model."""
    if not arguments.model and not arguments.demo:
        raise CommandError("which model? Give --model DIR or --model ID, or --demo for the small one in this package")


def _command(commands: argparse._SubParsersAction, name: str, summary: str, details: str = "") -> _Parser:
    command: _Parser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(details or f"{summary.capitalize()}.", width=100),
        epilog=_FILE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("file", nargs="?", metavar="FILE", help="requests; may be left out with --demo")
    model = command.add_mutually_exclusive_group()
    model.add_argument("--model", metavar="DIR|ID", help="a checkpoint: a directory, or an id on the Hugging Face hub")
    model.add_argument("--demo", action="store_true", help="the small model in this package; its example without FILE")
    return command


def _add_dtype(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=DTYPES, help="default: bfloat16 on an accelerator, float32 on a CPU")
