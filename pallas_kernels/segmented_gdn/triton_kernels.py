"""The kernels of the gated delta rule in Triton's language. They import triton, so only `triton.py` imports this."""

from typing import no_type_check

import triton
import triton.language as tl

ROWS = tl.constexpr(64)  # of a chunk
SIDE = tl.constexpr(16)  # of the blocks that a chunk's system is cut into: the least that the tensor cores take
BLOCKS = tl.constexpr(4)  # blocks along a chunk
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def solve(
    chunk_length,  # int32 [C]
    query,  # [chunk rows, nk, dk]
    key,
    log_decay,  # float32 [chunk rows, nv]
    write_strength,
    system,  # [C, nv, 64, 64]
    mix,
    gates,  # float32 [C, nv, 2, 64]
    key_heads: tl.constexpr,
    value_heads: tl.constexpr,
    key_dim: tl.constexpr,
    slab: tl.constexpr,
    scale: tl.constexpr,
    precision: tl.constexpr,
):
    """One program, of one warp, takes one chunk and value head. What it writes is defined in `pallas_solve`.

    T = (I + A / G)^-1 is built from blocks of SIDE rows: the one on the diagonal, then its row from the rows above.
    """
    head, chunk = tl.program_id(0), tl.program_id(1)
    if tl.load(chunk_length + chunk) == 0:
        return
    i = tl.arange(0, SIDE)
    row_size = key_heads * key_dim
    key_head = head // (value_heads // key_heads)
    offset = chunk * ROWS * row_size + i[:, None] * row_size + key_head * key_dim + tl.arange(0, slab)[None, :]
    gate_offset = (chunk * ROWS + i) * value_heads + head
    place = chunk * value_heads + head
    square = place * ROWS * ROWS + i[:, None] * ROWS + i[None, :]

    strengths, sums = (), ()
    total = 0.0
    for b in tl.static_range(BLOCKS):
        strengths += (tl.load(write_strength + gate_offset + b * SIDE * value_heads),)
        decay = tl.load(log_decay + gate_offset + b * SIDE * value_heads) * LOG2_E
        sums += (total + tl.cumsum(decay, axis=0),)
        total += tl.sum(decay, axis=0)
    for b in tl.static_range(BLOCKS):
        tl.store(gates + place * 2 * ROWS + b * SIDE + i, tl.exp2(sums[b]))
        tl.store(gates + (place * 2 + 1) * ROWS + b * SIDE + i, tl.exp2(total - sums[b]))

    inverse = ()  # blocks of T on and below the diagonal, row after row: block (b, a) is number b (b + 1) / 2 + a
    for b in tl.static_range(BLOCKS):
        a_row = ()
        for a in tl.static_range(b + 1):
            # In slabs of channels, and keys again for each block: there are no registers to keep more of them.
            here, there = offset + b * SIDE * row_size, offset + a * SIDE * row_size
            products = tl.zeros([SIDE, SIDE], tl.float32)
            squares = tl.zeros([SIDE, SIDE], tl.float32)
            for channel in range(0, key_dim, slab):
                keys = tl.trans(tl.load(key + there + channel))
                products = tl.dot(tl.load(query + here + channel), keys, products, input_precision=precision)
                squares = tl.dot(tl.load(key + here + channel), keys, squares, input_precision=precision)
            squares *= strengths[b][:, None]
            products *= scale * tl.exp2(tl.minimum(sums[b][:, None] - sums[a][None, :], 0.0))
            if a == b:
                products = tl.where(i[:, None] >= i[None, :], products, 0.0)
                squares = tl.where(i[:, None] > i[None, :], squares, 0.0)
            tl.store(mix + square + (b * ROWS + a) * SIDE, products.to(mix.dtype.element_ty))
            a_row += (squares,)
        corner = _inverse(a_row[b])
        for a in tl.static_range(b + 1):
            block = corner
            if a < b:  # T_ba = -T_bb sum of A_bc T_ca over c from a to b - 1
                block = tl.zeros([SIDE, SIDE], tl.float32)
                for c in tl.static_range(a, b):
                    block = tl.dot(a_row[c], inverse[c * (c + 1) // 2 + a], block, input_precision="tf32x3")
                block = -tl.dot(corner, block, input_precision="tf32x3")
            inverse += (block,)
            block *= tl.exp2(tl.minimum(sums[b][:, None] - sums[a][None, :], 0.0)) * strengths[a][None, :]
            tl.store(system + square + (b * ROWS + a) * SIDE, block.to(system.dtype.element_ty))
        for a in tl.static_range(b + 1, BLOCKS):
            zero = tl.zeros([SIDE, SIDE], system.dtype.element_ty)
            tl.store(system + square + (b * ROWS + a) * SIDE, zero)
            tl.store(mix + square + (b * ROWS + a) * SIDE, zero)


@triton.jit
@no_type_check
def _inverse(a):
    """(I + a)^-1 of a strictly lower triangular block, by doubling the side of the blocks on the diagonal."""
    i = tl.arange(0, SIDE)
    highest = i[:, None] ^ i[None, :]  # its highest bit is the side of the smallest doubled block that holds both
    inverse = tl.where(highest == 0, 1.0, 0.0) - tl.where(highest == 1, a, 0.0)
    for level in tl.static_range(1, 4):
        corner = tl.where((highest >> level) == 1, a, 0.0)
        corner = tl.dot(corner, inverse, input_precision="tf32x3")
        inverse -= tl.dot(inverse, corner, input_precision="tf32x3")
    return inverse


@triton.jit
@no_type_check
def scan(
    length,  # int32 [G], as the next three; 0 for a segment that this launch leaves out
    first_chunk,
    initial_slot,
    final_slot,
    query,  # [chunk rows, nk, dk]
    key,
    value,  # [chunk rows, nv, dv]
    system,  # [C, nv, 64, 64]
    mix,
    gates,  # float32 [C, nv, 2, 64]
    out,  # [chunk rows, nv, dv]
    states,  # float32 [slots, nv, dv, dk]
    pool,  # float32 [pool slots, nv, dv, dk], or None
    slots,
    key_heads: tl.constexpr,
    value_heads: tl.constexpr,
    key_dim: tl.constexpr,
    value_dim: tl.constexpr,
    share: tl.constexpr,  # of dv
    scale: tl.constexpr,
    precision: tl.constexpr,
):
    """One program carries `share` dimensions of one value head's state along one segment.

    The state stays transposed, [share, dk]: it and all that follows from it are left operands, which stay in registers.
    """
    part, segment = tl.program_id(0), tl.program_id(1)
    rows_to_go = tl.load(length + segment)
    if rows_to_go == 0:
        return
    head = part // (value_dim // share)
    key_head = head // (value_heads // key_heads)
    channel = part % (value_dim // share) * share + tl.arange(0, share)
    row, key_channel = tl.arange(0, ROWS), tl.arange(0, key_dim)
    state_offset = (head * value_dim + channel)[:, None] * key_dim + key_channel[None, :]
    slot_size = value_heads * value_dim * key_dim

    initial = tl.load(initial_slot + segment)
    source = _slot(states, pool, tl.maximum(initial, 0), slots, slot_size)
    state = tl.load(source + state_offset, mask=initial >= 0, other=0.0)
    first = tl.load(first_chunk + segment)
    for chunk in range(first, first + tl.cdiv(rows_to_go, ROWS)):
        rows = chunk * ROWS + row
        key_offset = (rows * key_heads + key_head)[:, None] * key_dim + key_channel[None, :]
        value_offset = (rows * value_heads + head)[:, None] * value_dim + channel[None, :]
        place = chunk * value_heads + head
        square = place * ROWS * ROWS + row[:, None] * ROWS + row[None, :]
        k, q = tl.load(key + key_offset), tl.load(query + key_offset)
        v = tl.load(value + value_offset)
        since_begin = tl.load(gates + place * 2 * ROWS + row)
        until_end = tl.load(gates + place * 2 * ROWS + ROWS + row)
        all_rows = tl.load(gates + place * 2 * ROWS + ROWS - 1)

        rounded = state.to(k.dtype)
        known = tl.dot(rounded, tl.trans(k), input_precision=precision)
        error = tl.trans(v).to(tl.float32) - since_begin[None, :] * known
        write = tl.dot(error.to(k.dtype), tl.trans(tl.load(system + square)), input_precision=precision)
        answer = tl.dot(rounded, tl.trans(q), input_precision=precision) * (scale * since_begin)[None, :]
        answer = tl.dot(write.to(k.dtype), tl.trans(tl.load(mix + square)), answer, input_precision=precision)
        tl.store(out + value_offset, tl.trans(answer).to(out.dtype.element_ty))
        state = tl.dot((write * until_end[None, :]).to(k.dtype), k, state * all_rows, input_precision=precision)

    final = tl.load(final_slot + segment)
    if final >= 0:
        tl.store(_slot(states, pool, final, slots, slot_size) + state_offset, state)


@triton.jit
@no_type_check
def _slot(states, pool, slot, slots, slot_size: tl.constexpr):
    """The address of a slot: of those of the call, then those of the pool."""
    if pool is not None:
        in_pool = slot >= slots
        states = tl.where(in_pool, pool, states)
        slot -= tl.where(in_pool, slots, 0)
    return states + slot.to(tl.int64) * slot_size
