"""Examples as streams of one fixed shape, for the training step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.demo_world import Asked, Example
from flide_jax.layout import Capacity, Demand, MetadataLayout, lay_out
from flide_jax.prompts.format import PromptFormat
from flide_jax.prompts.plan import Plan


class StreamBatch(NamedTuple):
    """B streams of one capacity and the right answer at each read.

    Attributes:
        buffers: the metadata buffers, int32 [B, words] (`MetadataLayout`).
        first_label: the column of a read's first option among the labels, int32 [B, reads].
        options: how many options the read's question has, int32 [B, reads]; 0 at a padding read.
        gold: which of them is right, int32 [B, reads].
    """

    buffers: np.ndarray
    first_label: np.ndarray
    options: np.ndarray
    gold: np.ndarray


@dataclass(frozen=True)
class Packer:
    """Packs examples into streams.

    Attributes:
        prompt_format: makes the tokens.
        capacity: of every stream.
        conv_taps: taps of the model's short convolution.
    """

    prompt_format: PromptFormat
    capacity: Capacity
    conv_taps: int

    @property
    def layout(self) -> MetadataLayout:
        return MetadataLayout(self.capacity, self.conv_taps)

    def fitted(self, example: Example) -> tuple[Example, Plan]:
        """The example, without its last questions if the whole does not fit a stream, and its plan."""
        while True:
            plan = self.prompt_format.plan(example.request)
            if self.capacity.fits(Demand.of(plan)):
                return example, plan
            if len(example.asked) == 1:
                raise ValueError(f"a question of {Demand.of(plan)} does not fit into {self.capacity}")
            example = example.shortened(len(example.asked) * 2 // 3)

    def pack(self, examples: Iterator[Example], streams: int) -> tuple[StreamBatch, list[list[Asked]]]:
        """Fill `streams` streams, each example in the first one with room; also what each stream asks, read by read.

        Takes examples until one finds no room for the `streams`-th time, so that little of a stream stays empty.
        """
        bins: list[list[tuple[Example, Plan]]] = [[] for _ in range(streams)]
        demands: list[Demand | None] = [None] * streams
        refused = 0
        while refused < streams:
            example, plan = self.fitted(next(examples))
            demand = Demand.of(plan)
            for index, total in enumerate(demands):
                grown = demand if total is None else total + demand
                if self.capacity.fits(grown):
                    bins[index].append((example, plan))
                    demands[index] = grown
                    break
            else:
                refused += 1
        return self.lay_out(bins)

    def lay_out(self, bins: Sequence[Sequence[tuple[Example, Plan]]]) -> tuple[StreamBatch, list[list[Asked]]]:
        """The batch of these streams, and what each stream asks, read by read."""
        asked = [[one for example, _ in one_bin for one in example.asked.values()] for one_bin in bins]
        first_label, options, gold = (np.zeros((len(bins), self.capacity.reads), np.int32) for _ in range(3))
        for row, stream in enumerate(asked):
            for column, one in enumerate(stream):
                labels = self.prompt_format.label_columns(one.question)
                first_label[row, column], options[row, column] = labels[0], len(labels)
                gold[row, column] = one.gold
        layout = self.layout
        buffers = np.stack([layout.pack(lay_out([plan for _, plan in one_bin])) for one_bin in bins])
        return StreamBatch(buffers, first_label, options, gold), asked
