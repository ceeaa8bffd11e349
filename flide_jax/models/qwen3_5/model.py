"""The forward pass: one stream of states and branches in, label logits of the read rows out."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int32

from flide_jax.array_types import Hidden, Logits, RowHidden, Tokens
from flide_jax.layout.metadata import RoundMetadata
from flide_jax.models import params as param
from flide_jax.models.attention import AttentionParams, gated_attention
from flide_jax.models.gated_delta_net import GatedDeltaNetParams, gated_delta_net
from flide_jax.models.layers import FeedForwardParams, RotaryTable, feed_forward, rotary_table
from flide_jax.models.params import Param, ParamSpec
from flide_jax.models.pool import KeyPages, LayerPool, Pool, StateSlots
from flide_jax.models.qwen3_5.config import LayerKind, Qwen35Config
from flide_jax.models.readout import label_logits
from pallas_kernels import rms_norm
from pallas_kernels.dispatch import Implementation
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from pallas_kernels.precision import accumulation_dtype


@struct.dataclass
class LayerParams:
    """One decoder layer."""

    mixer_norm: Param  # [d]
    mixer: AttentionParams | GatedDeltaNetParams
    feed_forward_norm: Param  # [d]
    feed_forward: FeedForwardParams


@struct.dataclass
class Qwen35Params:
    """The whole model. `head` holds the rows of the labels only, in float32 at least."""

    embedding: Param  # [V, d]
    layers: tuple[LayerParams, ...]
    final_norm: Param  # [d]
    head: Param  # [L, d]


def abstract(config: Qwen35Config, *, labels: int, dtype: np.dtype) -> Qwen35Params:
    """Shapes, dtypes and initialisers of all parameters. Matrices are in `dtype`, everything small in float32 at least.

    Decays are drawn near one, so that a state remembers hundreds of tokens.
    """
    accumulation = accumulation_dtype(dtype)
    width, hidden = config.width, config.feed_forward_width
    attention, gdn = config.attention, config.gated_delta_net

    def matrix(rows: int, columns: int) -> ParamSpec:
        return ParamSpec((rows, columns), np.dtype(dtype), param.normal(columns**-0.5))

    def small(*shape: int, initializer: param.Initializer) -> ParamSpec:
        return ParamSpec(shape, accumulation, initializer)

    def mixer(kind: LayerKind) -> AttentionParams | GatedDeltaNetParams:
        if kind is LayerKind.ATTENTION:
            heads = attention.query_heads * attention.head_dim
            return AttentionParams(
                in_proj=matrix(2 * heads + 2 * attention.key_heads * attention.head_dim, width),
                query_norm=small(attention.head_dim, initializer=param.constant(0.0)),
                key_norm=small(attention.head_dim, initializer=param.constant(0.0)),
                out_proj=matrix(width, heads),
            )
        return GatedDeltaNetParams(
            in_proj=matrix(gdn.conv_channels + gdn.value_channels + 2 * gdn.value_heads, width),
            conv_taps=small(gdn.conv_taps, gdn.conv_channels, initializer=param.normal(gdn.conv_taps**-0.5)),
            log_decay_rate=small(gdn.value_heads, initializer=param.log_uniform(0.05, 3.0)),
            decay_bias=small(gdn.value_heads, initializer=param.uniform(-5.0, -2.0)),
            norm=small(gdn.value_dim, initializer=param.constant(1.0)),
            out_proj=matrix(width, gdn.value_channels),
        )

    return Qwen35Params(
        embedding=ParamSpec((config.vocabulary, width), np.dtype(dtype), param.normal(1.0)),
        layers=tuple(
            LayerParams(
                mixer_norm=small(width, initializer=param.constant(0.0)),
                mixer=mixer(kind),
                feed_forward_norm=small(width, initializer=param.constant(0.0)),
                feed_forward=FeedForwardParams(gate_up=matrix(2 * hidden, width), down=matrix(width, hidden)),
            )
            for kind in config.layers
        ),
        final_norm=small(width, initializer=param.constant(0.0)),
        head=small(labels, width, initializer=param.normal(width**-0.5)),
    )


def abstract_pool(config: Qwen35Config, *, pages: int, slots: int, dtype: np.dtype) -> Pool:
    """Shapes and dtypes of what growing states may leave behind: keys of `pages` pages, states in `slots` slots."""
    attention, gdn, dtype = config.attention, config.gated_delta_net, np.dtype(dtype)

    def layer(kind: LayerKind) -> LayerPool:
        if kind is LayerKind.ATTENTION:
            page = jax.ShapeDtypeStruct((pages, PAGE_ROWS, attention.key_heads, attention.head_dim), dtype)
            return KeyPages(key=page, value=page)
        states = (slots, gdn.value_heads, gdn.value_dim, gdn.key_dim)
        return StateSlots(
            states=jax.ShapeDtypeStruct(states, accumulation_dtype(dtype)),
            windows=jax.ShapeDtypeStruct((slots, gdn.conv_taps - 1, gdn.conv_channels), dtype),
        )

    return tuple(map(layer, config.layers))


def embed(params: Qwen35Params, tokens: Tokens) -> Hidden:
    """Embedding rows, unscaled."""
    return params.embedding[tokens]


def forward(
    params: Qwen35Params,
    metadata: RoundMetadata,
    config: Qwen35Config,
    *,
    embedded: Hidden | None = None,
    first_layer: int = 0,
    implementation: Implementation = None,
    selective_readout: bool = True,
    batch_invariant: bool = False,
) -> Logits:
    """Label logits of the read rows of one round, [reads, L], float32 (float64 for a float64 model).

    `embedded` replaces `embed(params, metadata.tokens)` where rows are not, or not only, looked up in the embedding; or
    it is what `begin` returned for the layers before `first_layer`.

    Selective readout: of the last layer only what other rows may need (keys and values, or the recurrence) runs at
    every row; everything else runs at the read rows. Without it the whole layer runs at every row, for ablations.

    Batch-invariant: the bits of a logit depend on the tokens of the state and of the branch that it is read from, and
    on no other of the round, nor on its order or capacity (`EngineConfig.batch_invariant`). Then attention of the last
    layer runs at every row, too.
    """
    logits, _ = _forward(
        params,
        metadata,
        config,
        embedded=embedded,
        first_layer=first_layer,
        implementation=implementation,
        selective_readout=selective_readout,
        batch_invariant=batch_invariant,
    )
    return logits


def growing_forward(
    params: Qwen35Params,
    metadata: RoundMetadata,
    pool: Pool,
    config: Qwen35Config,
    *,
    embedded: Hidden | None = None,
    first_layer: int = 0,
    implementation: Implementation = None,
    selective_readout: bool = True,
) -> tuple[Logits, Pool]:
    """`forward` of a growing round: states resume from a pool, which is returned with what they leave in it.

    The pool is that of the layers from `first_layer` on.
    """
    logits, after = _forward(
        params,
        metadata,
        config,
        pool=pool,
        embedded=embedded,
        first_layer=first_layer,
        implementation=implementation,
        selective_readout=selective_readout,
    )
    return logits, after


def begin(
    params: Qwen35Params,
    metadata: RoundMetadata,
    config: Qwen35Config,
    *,
    layers: int,
    pool: Pool | None = None,
    implementation: Implementation = None,
    batch_invariant: bool = False,
) -> tuple[Hidden, Pool]:
    """The residual stream behind the first layers, and their pool (empty without one); `forward` goes on from there."""
    hidden = embed(params, metadata.tokens)
    return _layers(
        params.layers[:layers],
        hidden,
        metadata,
        config,
        pool=pool,
        implementation=implementation,
        batch_invariant=batch_invariant,
    )


def hidden_states(
    params: Qwen35Params,
    metadata: RoundMetadata,
    config: Qwen35Config,
    *,
    embedded: Hidden | None = None,
    batch_invariant: bool = False,
    implementation: Implementation = None,
) -> Float[Array, "depths T d"]:
    """The residual stream after the embedding and after every layer, all rows: for proofs and ablations."""
    rotary = _rotary(metadata, config, params.final_norm.dtype)
    states = [embed(params, metadata.tokens) if embedded is None else embedded]
    for layer in params.layers:
        hidden, _ = _decoder_layer(
            layer,
            states[-1],
            rotary,
            metadata,
            config,
            batch_invariant=batch_invariant,
            implementation=implementation,
        )
        states.append(hidden)
    return jnp.stack(states)


def _forward(
    params: Qwen35Params,
    metadata: RoundMetadata,
    config: Qwen35Config,
    *,
    pool: Pool | None = None,
    embedded: Hidden | None,
    first_layer: int,
    implementation: Implementation,
    selective_readout: bool,
    batch_invariant: bool = False,
) -> tuple[Logits, Pool]:
    """Logits, and the pool after all layers; empty without one."""
    hidden = embed(params, metadata.tokens) if embedded is None else embedded
    read_rows = jnp.asarray(metadata.read_rows)
    hidden, after = _layers(
        params.layers[first_layer:],
        hidden,
        metadata,
        config,
        last_rows=read_rows if selective_readout else None,
        pool=pool,
        batch_invariant=batch_invariant,
        implementation=implementation,
    )
    hidden = hidden if selective_readout else hidden[read_rows]
    logits = label_logits(
        hidden, params.final_norm, params.head, epsilon=config.norm_epsilon, batch_invariant=batch_invariant
    )
    return logits, after


def _layers(
    layers: Sequence[LayerParams],
    hidden: Hidden,
    metadata: RoundMetadata,
    config: Qwen35Config,
    *,
    last_rows: Int32[Array, " N"] | None = None,
    pool: Pool | None,
    batch_invariant: bool,
    implementation: Implementation,
) -> tuple[RowHidden, Pool]:
    """Some layers one after the other, the last of them at some rows, or everywhere; and what they keep."""
    rotary = _rotary(metadata, config, accumulation_dtype(hidden.dtype))
    after = []
    for number, layer in enumerate(layers):
        hidden, kept = _decoder_layer(
            layer,
            hidden,
            rotary,
            metadata,
            config,
            rows=last_rows if number == len(layers) - 1 else None,
            pool=None if pool is None else pool[number],
            batch_invariant=batch_invariant,
            implementation=implementation,
        )
        after += [] if kept is None else [kept]
    return hidden, tuple(after)


def _rotary(metadata: RoundMetadata, config: Qwen35Config, dtype: np.dtype) -> RotaryTable:
    return rotary_table(jnp.asarray(metadata.rotary_positions), config.attention.rotary, dtype)


def _decoder_layer(
    params: LayerParams,
    hidden: Hidden,
    rotary: RotaryTable,
    metadata: RoundMetadata,
    config: Qwen35Config,
    *,
    rows: Int32[Array, " N"] | None = None,
    pool: LayerPool | None = None,
    batch_invariant: bool = False,
    implementation: Implementation = None,
) -> tuple[RowHidden, LayerPool | None]:
    """Mixer and feed-forward, each behind a norm and added to the residual stream; output at `rows`, or everywhere.

    And what the layer keeps, in a growing round.
    """
    epsilon = config.norm_epsilon
    norm = functools.partial(rms_norm, epsilon=epsilon, batch_invariant=batch_invariant, implementation=implementation)
    normed = checkpoint_name(norm(hidden, params.mixer_norm), "mixer_norm")
    residual = hidden if rows is None else hidden[rows]
    kept: LayerPool | None
    if isinstance(params.mixer, AttentionParams):
        assert pool is None or isinstance(pool, KeyPages)
        hidden, kept = gated_attention(
            params.mixer,
            normed,
            rotary,
            metadata.spans,
            config.attention,
            residual=residual,
            rows=rows,
            pages=pool,
            growth=metadata.growth,
            epsilon=epsilon,
            chunks=metadata.segments if batch_invariant else None,
            implementation=implementation,
        )
    else:
        assert pool is None or isinstance(pool, StateSlots)
        hidden, kept = gated_delta_net(
            params.mixer,
            normed,
            metadata.predecessors,
            metadata.segments,
            config.gated_delta_net,
            residual=residual,
            rows=rows,
            slots=pool,
            growth=metadata.growth,
            epsilon=epsilon,
            batch_invariant=batch_invariant,
            implementation=implementation,
        )
    normed = checkpoint_name(norm(hidden, params.feed_forward_norm), "feed_forward_norm")
    with jax.named_scope("feed_forward"):
        hidden = feed_forward(
            params.feed_forward, normed, hidden, batch_invariant=batch_invariant, implementation=implementation
        )
    return hidden, kept
