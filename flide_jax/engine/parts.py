"""What a round runs: one executable, or two in a chain.

A call of an executable takes the host about a millisecond before the device has its work, which is a third of what a
short request takes. So on a GPU the first layers are an executable of their own: while the device runs them, the host
starts the others. No bit changes: what one hands to the other is rounded in between in any case.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

# One layer in so many is in the first of two executables: enough for the device while the host starts the second, few
# enough for the host to start them soon.
FIRST_SHARE = 3
CHAINED_ON = ("gpu",)


def first_layers(layers: int) -> int:
    """Of so many layers, those in an executable of their own on the default backend."""
    return layers // FIRST_SHARE if jax.default_backend() in CHAINED_ON else 0


@dataclasses.dataclass(frozen=True)
class Part:
    """An executable before it is compiled.

    Attributes:
        function: of (parameters, metadata buffer, what the part before hands on, pool); returns (what it hands on or
            answers, pool). The pool is given away.
        arguments: shapes and dtypes of these.
        results: structure of what it returns.
        answers: whether it returns the logits.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, Any, Any, Any]
    results: jax.tree_util.PyTreeDef
    answers: bool

    def compile(self, options: Mapping[str, bool | int | str]) -> jax.stages.Compiled:
        """For the default device, with XLA's options."""
        found = _where_logits_go() if self.answers else None
        jitted = jax.jit(self.function, donate_argnums=(3,), out_shardings=(found, None))
        return jitted.lower(*self.arguments).compile(compiler_options=dict(options))


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledRound:
    """The executables of one capacity.

    Attributes:
        parts: one or two.
        first_params: how many of the parameters' arrays are the first one's, of two.
        first_pool: how many of the pool's arrays.
    """

    parts: tuple[jax.stages.Compiled, ...]
    first_params: int = 0
    first_pool: int = 0

    def __call__(self, params: tuple[Any, ...], buffer: Any, pool: tuple[Any, ...] = ()) -> Any:
        """Label logits; of a growing round, which takes the arrays of the pool, (label logits, pool)."""
        handed_on: Any = ()
        kept: tuple[Any, ...] = ()
        if len(self.parts) > 1:
            (handed_on, buffer), kept = self.parts[0](params[: self.first_params], buffer, (), pool[: self.first_pool])
        logits, more = self.parts[-1](params[self.first_params :], buffer, handed_on, pool[self.first_pool :])
        return (logits, (*kept, *more)) if pool else logits


def _where_logits_go() -> jax.sharding.Sharding | None:
    """From a GPU straight into host memory: a copy that is asked for afterwards would cost a third of a millisecond."""
    if jax.default_backend() != "gpu":
        return None
    return jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
