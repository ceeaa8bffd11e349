"""Training batches from worker processes, in the same order for any number of workers."""

import multiprocessing
import os
import queue
from collections.abc import Generator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from experiments.demo_training.streams import Packer, StreamBatch
from experiments.demo_world import KINDS, DemoWorld, Difficulty
from flide_jax.layout import Capacity
from flide_jax.prompts.format import PromptFormat

BINDING = ("person_in", "where_person")  # questions that only who is where can answer
FULL, PLAIN = 0.15, 0.25  # shares of the whole world from the start, of binding alone to the end


def difficulties(progress: float, *, longest: int) -> tuple[Difficulty, ...]:
    """What is drawn when a share `progress` of the growing is over.

    For the first quarter most stories only say who is where; then ever more of them grow to the whole world. Recaps,
    many at first, become rare.
    """
    grown = min(1.0, max(0.0, (progress - 0.25) / 0.75))
    recaps = 0.7 - 0.6 * grown
    plain = Difficulty(
        3, 2, kinds=("go", "lies", "take"), recaps=recaps, asked=BINDING, apart=True, flowing=True,
        listed=0.5, parts=("story",), share=1 - FULL - (1 - FULL - PLAIN) * grown,
    )  # fmt: skip
    growing = Difficulty(
        round(3 + (longest - 3) * grown),
        round(2 + 2 * grown),
        KINDS[: round(4 + (len(KINDS) - 4) * grown)],
        recaps,
        share=1 - FULL - plain.share,
    )
    return plain, growing, Difficulty(longest, recaps=0.1, share=FULL)


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
    growing: int  # batches over which stories grow to the longest and to all that may happen

    def packer(self) -> Packer:
        return Packer(PromptFormat.load(self.tokenizer), self.capacity, self.conv_taps)

    def batch(self, packer: Packer, index: int) -> StreamBatch:
        """Training batch number `index`."""
        mixture = difficulties(index / self.growing if self.growing else 1.0, longest=self.longest)
        examples = self.world.examples(f"{self.seed} {index}", *mixture)
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
