"""The Triton kernels at the sizes of released models.

`python -m tests.h200.triton_programs NAME CARD DIRECTORY` compiles a program for a card (of `compiler`) and dumps what
XLA made of it into the directory. On an A100 no implementation is named: it has to be what is chosen there.
"""

import dataclasses
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax

from flide_jax.engine.program import GPU_COMPILER_OPTIONS
from pallas_kernels.fork_attention import cases as attention
from pallas_kernels.segmented_gdn import cases as recurrence
from tests.h200 import compiler, programs
from tests.h200.programs import Program

ATTENTION = [
    *(dataclasses.replace(attention.CASES["multirc"], head_dim=head_dim) for head_dim in (64, 128, 256)),
    attention.CASES["resumed"],
    attention.CASES["quality-all reads"],
]
RECURRENCE = [recurrence.CASES["multirc"], recurrence.CASES["growing step"]]


def of_cases(module: ModuleType, cases: Sequence[Any], implementation: str | None) -> Program:
    """All of the cases, one after the other."""
    calls = [module.caller(case, implementation) for case in cases]
    operands = [jax.eval_shape(case.operands, jax.random.key(0)) for case in cases]

    def function(*operands: Sequence[jax.Array]) -> Any:
        return [call(*one) for call, one in zip(calls, operands, strict=True)]

    return Program(function, tuple(operands))


def program(name: str, implementation: str | None) -> Program:
    match name:
        case "fork_attention":
            return of_cases(attention, ATTENTION, implementation)
        case "segmented_gdn":
            return of_cases(recurrence, RECURRENCE, implementation)
    return programs.PROGRAMS[name]()


def main(name: str, card: str, directory: str) -> None:
    function, operands, donated = program(name, None if card == "A100" else "triton")
    options = GPU_COMPILER_OPTIONS | {"xla_dump_to": directory}
    card_options = {"card": getattr(compiler, card), "donated": donated, "options": options}
    compiler.compile_without_card(function, *operands, **card_options)


if __name__ == "__main__":
    main(*sys.argv[1:])
