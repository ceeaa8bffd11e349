"""Examples as streams of one fixed shape, for the training step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.demo_world import WHO, Asked, Example
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
        who: whether the answer turns on who is asked about, bool [B, reads].
        word_rows: the row that ends the text of the read's question, before its options, int32 [B, reads].
        words: the token that could answer there in one word (`Asked.word`), int32 [B, reads]; -1 for none.
    """

    buffers: np.ndarray
    first_label: np.ndarray
    options: np.ndarray
    gold: np.ndarray
    who: np.ndarray
    word_rows: np.ndarray
    words: np.ndarray


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
        who = np.zeros(gold.shape, bool)
        for row, stream in enumerate(asked):
            for column, one in enumerate(stream):
                labels = self.prompt_format.label_columns(one.question)
                first_label[row, column], options[row, column] = labels[0], len(labels)
                gold[row, column] = one.gold
                who[row, column] = one.certain and one.family in WHO
        layout = self.layout
        buffers = np.stack([layout.pack(lay_out([plan for _, plan in one_bin])) for one_bin in bins])
        return StreamBatch(buffers, first_label, options, gold, who, *self._words(buffers, bins)), asked

    def _words(
        self, buffers: np.ndarray, bins: Sequence[Sequence[tuple[Example, Plan]]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """`word_rows` and `words` of the streams in `buffers`, [B, reads] each.

        The text of a question ends with its question mark and line end, one token. Questions without one have no word,
        and of a word of several tokens the first stands for all.
        """
        encode = self.prompt_format.tokenizer.encode
        (end_of_text,) = encode(["?\n"])
        rows, words = (np.full((len(bins), self.capacity.reads), none, np.int32) for none in (0, -1))
        for stream, one_bin in enumerate(bins):
            read_rows = self.layout.unpack(buffers[stream]).read_rows
            branches = [
                (plan.branch(index), one.word)
                for example, plan in one_bin
                for index, one in enumerate(example.asked.values())
            ]
            for column, (branch, word) in enumerate(branches):
                pairs = np.stack([branch[:-1], branch[1:]], axis=1)
                ends = np.flatnonzero((pairs == end_of_text).all(axis=1))
                if word is not None and ends.size:
                    # The read stands at the branch's last token.
                    rows[stream, column] = read_rows[column] - (branch.size - 1) + ends[0] + 1
                    words[stream, column] = encode([f" {word}"])[0][0]
        return rows, words
