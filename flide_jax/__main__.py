"""`python -m flide_jax` is the command `flide-jax`."""

import sys

from flide_jax.cli import main


def command() -> int:
    """Run the command in a process of its own, which has no use for torch.

    transformers imports it wherever it is installed, in two seconds.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # as the import system says that there is none
    return main()


if __name__ == "__main__":
    sys.exit(command())
