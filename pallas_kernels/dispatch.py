"""Choice of an implementation by name, or of the best one that can run.

Every op keeps a table of functions with one signature. A name picks that function, and it fails loudly where it
cannot run; `None` tries the names of `PREFERENCE` in order. A function says "not me" only by NotImplementedError.
"""

from collections.abc import Callable, Mapping
from typing import Any

# Never the reference: it is written to be read, and would hide a missing kernel behind a slow answer.
PREFERENCE = ("xla",)
NAMES = (*PREFERENCE, "reference")


def run(
    op: str, table: Mapping[str, Callable[..., Any]], implementation: str | None, *args: Any, **options: Any
) -> Any:
    """Call `table[implementation]`, or the first of `PREFERENCE` that accepts the arguments.

    Raises ValueError for a name that the op does not have, whatever the named implementation raises, and an
    ExceptionGroup of NotImplementedError when none can run.
    """
    if implementation is not None:
        if implementation not in table:
            raise ValueError(f"{op}: implementation must be one of {', '.join(table)}, got {implementation!r}")
        return table[implementation](*args, **options)
    refusals = []
    for name in PREFERENCE:
        try:
            return table[name](*args, **options)
        except NotImplementedError as refusal:
            refusals.append(refusal)
    raise ExceptionGroup(f"{op}: no implementation can run", refusals)
