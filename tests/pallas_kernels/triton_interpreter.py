"""Stands in for `jax_triton.triton_call`: the kernels run on the host, program after program, in Triton's interpreter.

Triton interprets what it compiles otherwise if TRITON_INTERPRET is set when it is imported; `tests/conftest.py` does.
"""

import inspect
import threading
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import jax_triton
import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_ONE_AT_A_TIME = threading.Lock()  # the interpreter keeps the program's index in a global


@pytest.fixture
def interpreted(monkeypatch):
    """Triton kernels run on the host."""
    monkeypatch.setattr(jax_triton, "triton_call", triton_call)


def triton_call(
    *operands: Any,
    kernel: Any,
    out_type: Any,
    grid: tuple[int, ...],
    num_warps: int,
    num_stages: int,
    backend_options: dict[str, int],
    **others: Any,
) -> Any:
    """The outputs of a launch; refs among the operands are written. Outputs and unwritten memory begin as NaN."""
    given = inspect.signature(kernel.fn).bind_partial(*operands, **others).arguments
    shapes, tree = jax.tree.flatten(out_type)
    names = iter(name for name in kernel.arg_names if name not in given)
    outputs = dict(zip(names, shapes, strict=True))
    refs = {name: x for name, x in given.items() if _is_ref(x)}
    arrays = {name: x[...] if name in refs else x for name, x in given.items() if name in refs or _is_array(x)}
    constants = {name: x for name, x in given.items() if name not in arrays}

    def launch(arrays: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        tensors = {name: _tensor(np.array(x)) for name, x in arrays.items()}
        tensors |= {name: _tensor(_unwritten(shape)) for name, shape in outputs.items()}
        # numpy warns of what a card does without a word.
        with _ONE_AT_A_TIME, np.errstate(all="ignore"), _BFLOAT16:
            kernel[grid](**tensors, **constants)
        return tuple({name: _array(tensors[name], like[name].dtype) for name in like} for like in (outputs, refs))

    like = ({name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in group.items()} for group in (outputs, refs))
    found, written = jax.pure_callback(launch, tuple(like), arrays)
    for name, ref in refs.items():
        ref[...] = written[name]
    return jax.tree.unflatten(tree, [found[name] for name in outputs])


def _dot(_: Any, left: Any, right: Any, start: Any, *options: Any) -> TensorHandle:
    """left @ right + start in float32, whatever the options say."""
    left, right = (_widened(x.data) for x in (left, right))
    return TensorHandle(left @ right + start.data, start.dtype.scalar)


def _widened(x: np.ndarray) -> np.ndarray:
    """float32; the interpreter keeps bfloat16 as uint16."""
    return x.view(jnp.bfloat16).astype(np.float32) if x.dtype == np.uint16 else x


def _cast(builder: Any, x: Any, dtype: Any) -> TensorHandle:
    if (x.dtype.scalar, dtype.scalar) == (tl.float32, tl.bfloat16):
        return TensorHandle(x.data.astype(jnp.bfloat16).view(np.uint16), tl.bfloat16)
    return _cast_otherwise(builder, x, dtype)


# Triton's own (3.7.1) multiply the bits of bfloat16 as integers, and round to it towards zero.
_cast_otherwise = InterpreterBuilder.cast_impl
_BFLOAT16 = mock.patch.multiple(InterpreterBuilder, create_dot=_dot, cast_impl=_cast)


def _is_ref(x: Any) -> bool:
    return isinstance(x, jax.Ref)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def _unwritten(shape: jax.ShapeDtypeStruct) -> np.ndarray:
    return np.full(shape.shape, np.nan, shape.dtype)


def _tensor(x: np.ndarray) -> torch.Tensor:
    """Shares the memory of an array; torch knows numpy's dtypes, of which bfloat16 is none."""
    return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16) if x.dtype == jnp.bfloat16 else torch.from_numpy(x)


def _array(x: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    return x.view(torch.uint16).numpy().view(dtype) if x.dtype == torch.bfloat16 else x.numpy()
