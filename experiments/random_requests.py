"""Requests of random tokens, in the lengths of the workloads' requests."""

import json
from pathlib import Path

import numpy as np

from flide_jax.prompts.plan import Plan
from pallas_kernels.trees import Request

PROFILES = Path(__file__).parent / "profiles"
# The profile of each workload's requests.
PROFILE_OF = {
    "race-one": "race",
    "quality-one": "quality_leval_cut",
    "decision-index": "di_like",
    "race-all": "race_all",
    "quality-all": "quality_tokenmatched",
    "multirc": "multirc",
}


def read_profile(path: Path) -> list[Request]:
    """The lengths of a profile's requests, in tokens."""
    return [Request(state, branches) for state, branches in json.loads(path.read_text("utf-8"))]


def random_plan(request: Request, rng: np.random.Generator, *, vocabulary: int) -> Plan:
    """Token ids below the vocabulary, each branch read at its last row."""
    lengths = np.array(request.branches, np.int32)
    return Plan(
        state=rng.integers(0, vocabulary, request.state, np.int32),
        branches=rng.integers(0, vocabulary, int(lengths.sum()), np.int32),
        branch_lengths=lengths,
        read_branches=np.arange(lengths.size, dtype=np.int32),
        read_offsets=lengths - 1,
    )
