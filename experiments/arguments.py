"""What experiments share of their command lines."""

import argparse
import json
import math
from pathlib import Path
from typing import Any


def positive(text: str) -> int:
    """How many of something that must be there. argparse says in one line what it is not."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def positive_number(text: str) -> float:
    """More than nothing. argparse says in one line what it is not."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def existing_path(text: str) -> Path:
    """A file or directory that is there. argparse says in one line that it is not."""
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"{text}: no such file or directory")
    return Path(text)


def existing_directory(text: str) -> Path:
    """A directory that is there. argparse says in one line that it is not."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such directory")
    return Path(text)


def tokenizer_directory(text: str) -> Path:
    """A directory with a tokenizer, packed or not. argparse says in one line that it has none."""
    names = ("tokenizer.json", "tokenizer.json.xz")
    if not any((Path(text) / name).is_file() for name in names):
        raise argparse.ArgumentTypeError(f"{text}: no directory with {' or '.join(names)}")
    return Path(text)


def implementation(text: str) -> Any:
    """Of the ops, as EngineConfig takes it. argparse says in one line what it is not."""
    from pallas_kernels import dispatch  # as below

    try:
        found = json.loads(text)
        dispatch.check(found)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a name, or names by op, in JSON: {error}") from None
    return found


def need_gpu(parser: argparse.ArgumentParser) -> None:
    """Ends with one line and status 2 where there is no GPU, whose launches are what is measured."""
    import jax  # takes long, and programs that compute nothing go without it

    if jax.default_backend() != "gpu":
        parser.error(f"needs a GPU, whose launches it measures; the device here is {jax.default_backend()}")
