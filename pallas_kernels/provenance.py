"""What produced a measurement: the command's arguments, the commit, the device, its host, the versions, the day."""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np

HERE = Path(__file__).parent
# Where measurements go; that these files differ from the commit does not count.
RECORDS = "experiments/results"
PROCESSORS = Path("/proc/cpuinfo")


def provenance(options: argparse.Namespace) -> dict[str, Any]:
    """As JSON has it. The commit, and whether files differed from it, are None where git does not say."""
    differs = _git("status", "--porcelain", "--", ":/", f":(exclude,top){RECORDS}")
    return {
        "arguments": plain(vars(options)),
        "commit": _git("rev-parse", "HEAD"),
        "changed": None if differs is None else differs != "",
        "device": jax.devices()[0].device_kind,
        "host": {"processors": os.cpu_count(), "model": _processor()},
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON has them; of a path its last name alone, for where it lies on a machine says nothing elsewhere."""
    return json.loads(json.dumps(values, default=lambda value: value.name if isinstance(value, Path) else str(value)))


def _processor() -> str:
    """The model of the host's processor, as far as its system tells."""
    listed = re.search(r"model name\s*: (.+)", PROCESSORS.read_text()) if PROCESSORS.is_file() else None
    return listed[1] if listed else platform.processor()


def _git(*arguments: str) -> str | None:
    """What git says about the directory of this file, None where there is no git or no commit."""
    try:
        done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
