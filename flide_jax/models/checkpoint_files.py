"""Tensors of a checkpoint directory: safetensors only, one file or shards with an index, memory-mapped."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  gives numpy the dtype name bfloat16, which safetensors asks it for
import numpy as np
from safetensors import SafetensorError, safe_open


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says which file and why, in one line for each finding."""


def in_one_line(error: Exception) -> str:
    """What an error of another library says, in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class TensorFiles(Mapping[str, np.ndarray]):
    """Name -> tensor in its own dtype, over all files of a directory. Nothing is read before it is asked for."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        """Opens the files, which stay open as long as `stack`. Raises CheckpointError: missing or broken files."""
        self._sources: dict[str, Any] = {}
        for file in _weight_files(directory):
            try:
                opened = stack.enter_context(safe_open(file, framework="numpy"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file}: not a readable safetensors file: {error}") from None
            for name in opened.keys():
                if name in self._sources:
                    raise CheckpointError(f"{file}: tensor {name} stands in more than one file")
                self._sources[name] = opened

    def __getitem__(self, name: str) -> np.ndarray:
        return self._sources[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the file's header."""
        return tuple(self._sources[name].get_slice(name).get_shape())


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            files = [directory / name for name in names]
        except (ValueError, KeyError, AttributeError, TypeError):
            raise CheckpointError(f"{index}: not a safetensors index") from None
    else:
        files = [directory / "model.safetensors"]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(f"{directory}: missing {', '.join(missing)}")
    return files
