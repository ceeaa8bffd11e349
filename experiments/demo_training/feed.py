"""Training batches from worker processes, in the same order for any number of workers."""

import multiprocessing
import os
import queue
from collections.abc import Generator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from experiments.demo_training.streams import Packer, StreamBatch
from experiments.demo_world import DemoWorld
from flide_jax.layout import Capacity
from flide_jax.prompts.format import PromptFormat


@dataclass(frozen=True)
class FeedSettings:
    """What a worker needs to make batch k: it depends on these and on k alone."""

    tokenizer: Path
    world: DemoWorld
    capacity: Capacity
    conv_taps: int
    streams: int
    seed: int
    longest: int
    growing: int  # batches over which stories grow from 3 events to the longest

    def packer(self) -> Packer:
        return Packer(PromptFormat.load(self.tokenizer), self.capacity, self.conv_taps)

    def batch(self, packer: Packer, index: int) -> StreamBatch:
        """Training batch number `index`."""
        grown = min(1.0, index / self.growing) if self.growing else 1.0
        longest = round(3 + (self.longest - 3) * grown)
        examples = self.world.examples(f"{self.seed} {index}", longest=longest)
        return packer.pack(examples, self.streams)[0]


def batches(settings: FeedSettings, *, workers: int) -> Generator[StreamBatch]:
    """Training batches 0, 1, 2, ... without end; worker w of n makes w, w + n, w + 2n, ...

    With no worker they are made in this process. Close the iterator to end the workers.
    """
    if not workers:
        packer, index = settings.packer(), 0
        while True:
            yield settings.batch(packer, index)
            index += 1
    context = multiprocessing.get_context("spawn")
    queues = [context.Queue(maxsize=3) for _ in range(workers)]
    # The workers inherit the environment: they stay off the accelerator and do not fight over the cores.
    kept = {name: os.environ.get(name) for name in _WORKER_ENVIRONMENT}
    os.environ.update(_WORKER_ENVIRONMENT)
    processes = [
        context.Process(target=_work, args=(settings, first, workers, queues[first]), daemon=True)
        for first in range(workers)
    ]
    for process in processes:
        process.start()
    for name, value in kept.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        while True:
            for process, results in zip(processes, queues, strict=True):
                yield _next(process, results)
    finally:
        for process in processes:
            process.terminate()


_WORKER_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip


def _work(settings: FeedSettings, first: int, step: int, results: "multiprocessing.Queue[StreamBatch]") -> None:
    packer, index = settings.packer(), first
    while True:
        results.put(settings.batch(packer, index))
        index += step


def _next(process: BaseProcess, results: "multiprocessing.Queue[StreamBatch]") -> StreamBatch:
    while True:
        try:
            return results.get(timeout=5)
        except queue.Empty:
            if not process.is_alive():
                raise RuntimeError(f"a data worker ended with exit code {process.exitcode}") from None
