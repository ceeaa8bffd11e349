"""What produced a measurement: the commit, the device, the versions, the day."""

import datetime
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np

HERE = Path(__file__).parent
# Where measurements go; that these files differ from the commit does not count.
RECORDS = "experiments/results"


def provenance() -> dict[str, Any]:
    """As JSON has it. The commit, and whether files differed from it, are None where git does not say."""
    differs = _git("status", "--porcelain", "--", ":/", f":(exclude,top){RECORDS}")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "changed": None if differs is None else differs != "",
        "device": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _git(*arguments: str) -> str | None:
    """What git says about the directory of this file, None where there is no git or no commit."""
    try:
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
