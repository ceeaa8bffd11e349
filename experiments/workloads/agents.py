"""Growing states of agents from files that a user has: the demonstrations of SWE-agent, step by step, in tokens."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiments.random_checkpoint import write_tokenizer
from experiments.workloads.build import planned
from experiments.workloads.builders import Row, agent_steps
from experiments.workloads.system_one import read_rows, system_one
from flide_jax.prompts.format import PromptFormat
from flide_jax.prompts.plan import Plan


def read_agents(source: Path, tokenizer: Path) -> list[list[Plan]]:
    """The steps of each agent.

    Args:
        source: a directory of trajectories, or a file of the rows that `build agent-steps` makes of one.
        tokenizer: a directory with `tokenizer.json` or `.json.xz`; the template is that of the shipped model.

    Raises:
        ValueError: there is no step of an agent, or it is in another form.
    """
    try:
        agents = list(_by_agent(source))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source}: no trajectories, or rows made of them: {error!r}") from None
    if not agents:
        raise ValueError(f"{source}: no step of an agent in it")
    with tempfile.TemporaryDirectory() as made:
        write_tokenizer(Path(made), tokenizer)
        prompts = PromptFormat.load(made)
    return [[planned(prompts, step) for step in steps] for steps in agents]


def _by_agent(source: Path) -> Iterator[list[Row]]:
    """A state that does not begin with the one before it is another agent's."""
    steps: list[Row] = []
    for row in map(system_one, agent_steps(source)) if source.is_dir() else read_rows(source):
        if steps and not row["state"].startswith(steps[-1]["state"]):
            yield steps
            steps = []
        steps.append(row)
    if steps:
        yield steps
