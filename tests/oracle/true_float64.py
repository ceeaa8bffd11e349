"""A transformers forward that is float64 throughout.

`model.double()` is not one: the modelling code casts norms, decays, the delta rule, softmax and rotary tables to
float32 by name, which leaves an error as large as that of a float32 run. `true_float64` sends those casts to float64;
`Float32Spy` lists whatever still came out narrower.
"""

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_FACTORIES = ("arange", "zeros", "ones", "full", "empty", "tensor")


def _widened(dtype):
    return torch.float64 if dtype == torch.float32 else dtype


def _with_wide_dtype(function):
    """`function` with float32 replaced by float64 in its `dtype` argument."""

    def call(*args, **kwargs):
        if "dtype" in kwargs:
            kwargs["dtype"] = _widened(kwargs["dtype"])
        return function(*args, **kwargs)

    return call


def _with_wide_cast(to):
    """Tensor.to, which also takes the dtype by position."""

    def call(tensor, *args, **kwargs):
        if "dtype" in kwargs:
            kwargs["dtype"] = _widened(kwargs["dtype"])
        return to(tensor, *(_widened(arg) if isinstance(arg, torch.dtype) else arg for arg in args), **kwargs)

    return call


@contextmanager
def true_float64() -> Iterator[None]:
    """Within it every float32 named by the modelling code means float64, and new tensors are float64.

    Both build a model and run it inside: the rotary tables are made at construction. `from_pretrained` does not work
    inside (it leaves the rotary tables uninitialised): load weights into a model built here instead. It patches torch
    for the whole process, so nothing else may use torch meanwhile.
    """
    default = torch.get_default_dtype()
    with ExitStack() as patches:
        for owner in (torch, torch.nn.functional):
            patches.enter_context(patch.object(owner, "softmax", _with_wide_dtype(owner.softmax)))
        for name in _FACTORIES:
            patches.enter_context(patch.object(torch, name, _with_wide_dtype(getattr(torch, name))))
        patches.enter_context(patch.object(torch.Tensor, "to", _with_wide_cast(torch.Tensor.to)))
        patches.enter_context(patch.object(torch.Tensor, "float", torch.Tensor.double))
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


class Float32Spy(TorchDispatchMode):
    """Counts operators that yield a float narrower than float64, by operator and line of transformers: `found`."""

    _NARROW = (torch.float32, torch.bfloat16, torch.float16)

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operators += 1
        if any(isinstance(leaf, torch.Tensor) and leaf.dtype in self._NARROW for leaf in tree_leaves(out)):
            lines = [f"{f.filename}:{f.lineno}" for f in traceback.extract_stack() if "/transformers/" in f.filename]
            self.found[f"{func} at {lines[-1] if lines else 'outside transformers'}"] += 1
        return out
