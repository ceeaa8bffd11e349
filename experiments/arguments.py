"""What experiments share of their command lines."""

import argparse

import jax


def positive(text: str) -> int:
    """How many of something that must be there. argparse says in one line what it is not."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def need_gpu(parser: argparse.ArgumentParser) -> None:
    """Ends with one line and status 2 where there is no GPU, whose launches are what is measured."""
    if jax.default_backend() != "gpu":
        parser.error(f"needs a GPU, whose launches it measures; the device here is {jax.default_backend()}")
