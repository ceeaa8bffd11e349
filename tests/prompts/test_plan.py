"""Plans: their rules, and one branch as a sequence of its own."""

import numpy as np
import pytest

from flide_jax.prompts.plan import Plan


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def plan(**changes: np.ndarray) -> Plan:
    parts = {
        "state": ints(9, 8, 7, 6),
        "branches": ints(1, 2, 3, 4, 5),
        "branch_lengths": ints(3, 2),
        "read_branches": ints(-1, 0, 1, 1),
        "read_offsets": ints(3, 2, 0, 1),
    }
    return Plan(**(parts | changes))


def test_branches_and_sequences() -> None:
    made = plan()
    assert made.tokens == 9
    assert [made.branch(i).tolist() for i in range(2)] == [[1, 2, 3], [4, 5]]
    alone = made.alone(1)
    assert alone.state.tolist() == [9, 8, 7, 6, 4, 5] and alone.tokens == 6
    assert alone.branches.size == alone.branch_lengths.size == 0
    assert (alone.read_branches.tolist(), alone.read_offsets.tolist()) == ([-1, -1], [4, 5])
    assert made.alone(0).read_offsets.tolist() == [6]
    assert all(array.dtype == np.int32 for name, array in vars(alone).items() if name != "salt")
    assert alone.salt is None


def test_arrays_are_copied_and_read_only() -> None:
    state = ints(1, 2, 3, 4)
    made = plan(state=state)
    state[0] = 7
    assert made.state[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        made.state[0] = 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": ints()}, "at least one token"),
        ({"state": np.arange(4)}, r"state must be int32 with one axis, got int64 \(4,\)"),
        ({"state": ints(1, 2)[None]}, r"state must be int32 with one axis, got int32 \(1, 2\)"),
        ({"branch_lengths": ints(5, 0)}, "must be 1 or more, got 0"),
        ({"branch_lengths": ints(3, 3)}, "add up to 6, got 5 tokens"),
        ({"read_branches": ints(0)}, "1 read_branches but 4 read_offsets"),
        ({"read_branches": ints(-2, 0, 1, 1)}, r"must lie in \[-1, 2\)"),
        ({"read_branches": ints(-1, 0, 1, 2)}, r"must lie in \[-1, 2\)"),
        ({"read_offsets": ints(4, 2, 0, 1)}, "within their branch or state"),
        ({"read_offsets": ints(3, 2, 0, 2)}, "within their branch or state"),
        ({"read_offsets": ints(3, -1, 0, 1)}, "within their branch or state"),
    ],
)
def test_refusals(changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(**changes)


def test_there_is_no_branch_before_the_first() -> None:
    for index in (-1, 2):
        with pytest.raises(ValueError, match="there are 2 branches"):
            plan().branch(index)
