"""Types of command-line arguments that experiments share."""

import argparse


def positive(text: str) -> int:
    """How many of something that must be there. argparse says in one line what it is not."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)
