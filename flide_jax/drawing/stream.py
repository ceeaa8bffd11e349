"""The flat stream of a round: where each state and branch stands, and what its rows may look at."""

from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from flide_jax.array_types import IntVector
from flide_jax.drawing.text import one_line, plain_table
from flide_jax.layout import Capacity, MetadataLayout, RoundMetadata, Stream
from flide_jax.layout.pieces import chunks_of

LEGEND = (
    "[a, b): rows a to b - 1; [a, row]: up to the row itself. A row sees its state keys and its own keys. "
    "slot a → b: the recurrence starts from the state in slot a and leaves its own in slot b."
)
STRIP_CELLS = 96
_STATE, _BRANCHES, _PADDING = ("█", "cyan"), (("▓", "yellow"), ("▒", "magenta")), ("·", "dim")


def draw_stream(stream: Stream, capacity: Capacity, names: Sequence[str]) -> Table:
    """One line for each piece of the round, in the order of the stream.

    Args:
        stream: the round.
        capacity: what it runs in; its last rows are padding.
        names: of each branch, in the order of the stream.
    """
    layout = MetadataLayout(capacity, conv_taps=1)
    metadata = layout.unpack(layout.pack(stream))
    spans = {name: np.asarray(column) for name, column in vars(metadata.spans).items()}
    initial, final = np.asarray(metadata.segments.initial_slot), np.asarray(metadata.segments.final_slot)
    chunks, reads = chunks_of(stream.piece_length), _reads_of_pieces(stream)
    table = plain_table(
        "rows", "tokens", "request", "branch", "state keys", "own keys", "slot", "chunks", "reads",
        right=("tokens", "request", "chunks"), names=("branch", "reads"),
    )  # fmt: skip
    table.collapse_padding = True
    for piece in range(stream.piece_begin.size):
        begin = int(stream.piece_begin[piece])
        length = int(stream.piece_length[piece])
        rows = slice(begin, begin + length)
        is_state = stream.piece_parent[piece] < 0
        table.add_row(
            f"[{begin}, {begin + length})",
            str(length),
            str(stream.piece_request[piece]),
            Text("state") if is_state else one_line(names[piece - stream.requests], limit=24),
            _span(spans["state_begin"], spans["state_end"], rows),
            _span(spans["own_begin"], spans["own_end"], rows),
            _slot(int(initial[piece]), int(final[piece])),
            str(chunks[piece]),
            reads[piece],
            style="bold" if is_state else None,
        )
    used, rows_in_all = stream.tokens.size, capacity.tokens
    if used < rows_in_all:
        table.add_row(f"[{used}, {rows_in_all})", str(rows_in_all - used), "", "padding", style="dim")
    return table


def draw_rows(stream: Stream, metadata: RoundMetadata, rows: Sequence[int]) -> Table:
    """What the metadata of a round says of some rows; `branch` is c of paper Eq. 3, 0 in a state."""
    columns = ("row", "token", "request", "branch", "position", "state keys", "own keys", "predecessors", "chunk row")
    table = plain_table(*columns, right=columns[:5])
    spans = {name: np.asarray(column) for name, column in vars(metadata.spans).items()}
    piece = stream.token_piece
    for row in rows:
        parent = int(stream.piece_parent[piece[row]])
        branch = 0 if parent < 0 else 1 + int(piece[row] - np.flatnonzero(stream.piece_parent == parent)[0])
        table.add_row(
            str(row),
            str(np.asarray(metadata.tokens)[row]),
            str(stream.piece_request[piece[row]]),
            str(branch),
            str(np.asarray(metadata.rotary_positions)[0, row]),
            f"[{spans['state_begin'][row]}, {spans['state_end'][row]})",
            f"[{spans['own_begin'][row]}, {spans['own_end'][row]})" if branch else "",
            " ".join(map(str, np.asarray(metadata.predecessors)[row])),
            str(np.asarray(metadata.segments.chunk_row)[row]),
        )
    return table


def draw_strip(stream: Stream, capacity: Capacity) -> Text:
    """The rows of the capacity to scale, in one line: states solid, branches in turn, then padding."""
    strip = Text()
    for cell in range(STRIP_CELLS):
        row = (2 * cell + 1) * capacity.tokens // (2 * STRIP_CELLS)
        if row >= stream.tokens.size:
            strip.append(*_PADDING)
            continue
        piece = int(stream.token_piece[row])
        strip.append(*(_STATE if stream.piece_parent[piece] < 0 else _BRANCHES[piece % 2]))
    return strip


def summary(stream: Stream, capacity: Capacity) -> str:
    """What the round takes of its capacity, in one line."""
    chunks = chunks_of(stream.piece_length)
    padding = 1 - stream.tokens.size / capacity.tokens
    return (
        f"{stream.tokens.size:,} of {capacity.tokens:,} rows ({padding:.0%} padding), "
        f"{stream.requests} of {capacity.requests} requests, "
        f"{stream.piece_length.size - stream.requests} of {capacity.branches} branches, "
        f"{chunks.sum()} of {capacity.chunks} chunks, {stream.read_rows.size} of {capacity.reads} reads"
    )


def _span(begin: IntVector, end: IntVector, rows: slice) -> str:
    """The keys of some rows: one span for all of them, or one that ends at the row itself."""
    first, last = begin[rows], end[rows]
    if (first == last).all():
        return ""
    if (first == first[0]).all() and (last == last[0]).all():
        return f"[{first[0]}, {last[0]})"
    if (first == first[0]).all() and (last == np.arange(rows.start, rows.stop) + 1).all():
        return f"[{first[0]}, row]"
    return f"within [{first.min()}, {last.max()})"


def _slot(initial: int, final: int) -> str:
    """The slots of the recurrent state that a segment starts from and leaves its own in."""
    return f"{'zero' if initial < 0 else initial} → {'' if final < 0 else final}".rstrip()


def _reads_of_pieces(stream: Stream) -> list[str]:
    rows: list[list[str]] = [[] for _ in range(stream.piece_begin.size)]
    for row in stream.read_rows.tolist():
        rows[stream.token_piece[row]].append(str(row))
    return [" ".join(found) for found in rows]
