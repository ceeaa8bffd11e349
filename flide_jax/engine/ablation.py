"""The engine with one of its ideas taken away, to measure what that idea is worth: the answers stay the same."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from flide_jax.prompts.plan import Plan

Logits = Float[np.ndarray, "reads L"]


@dataclasses.dataclass(frozen=True)
class Ablation:
    """What an engine goes without; by default nothing. Every choice changes time and memory, and rounding only.

    Attributes:
        forks: False: every question is a text of its own, state and question, and nothing is shared (n questions cost
            n states). Texts still share rounds.
        command_buffers: False: a GPU is sent every kernel one by one, where it would replay a recorded graph. Without
            effect on a CPU.
        op_by_op: True: the forward is not compiled as a whole; each operation runs as soon as Python comes to it.
        one_request_a_round: True: a round holds one request (without forks: one question), and the rest is padding.
        selective_readout: False: the last layer runs at every row, not only at the read rows.
    """

    forks: bool = True
    command_buffers: bool = True
    op_by_op: bool = False
    one_request_a_round: bool = False
    selective_readout: bool = True


def logits_without_forks(plans: Sequence[Plan], run: Callable[[Sequence[Plan]], list[Logits]]) -> list[Logits]:
    """Label logits [reads, L] of each plan, from `run` on plans that do not fork.

    A branch is run as a text of its own; reads of the state itself come from the state alone.
    """
    texts, places = [], []
    for number, plan in enumerate(plans):
        for branch in sorted(set(plan.read_branches.tolist())):
            texts.append(plan.alone(branch) if branch >= 0 else _state_alone(plan))
            places.append((number, branch))
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in plans]
    for (number, branch), logits in zip(places, run(texts), strict=True):
        found[number].append((np.flatnonzero(plans[number].read_branches == branch), logits))
    return [_in_order(parts) for parts in found]


def _state_alone(plan: Plan) -> Plan:
    none, reads = np.empty(0, np.int32), plan.read_branches == -1
    return Plan(
        state=plan.state,
        branches=none,
        branch_lengths=none,
        read_branches=plan.read_branches[reads],
        read_offsets=plan.read_offsets[reads],
    )


def _in_order(parts: list[tuple[np.ndarray, np.ndarray]]) -> Logits:
    # Rows of the plan's reads, and their logits, in as many parts as the plan has texts.
    rows = np.concatenate([rows for rows, _ in parts])
    return np.concatenate([logits for _, logits in parts])[np.argsort(rows)]
