"""A checkpoint directory of a true size with random weights: it loads as any other, and its answers mean nothing."""

import argparse
import json
import lzma
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from experiments.arguments import tokenizer_directory
from experiments.measured_model import DEMO
from experiments.model_sizes import SIZES
from experiments.records import SEED
from flide_jax.engine.model_directory import demo_directory
from flide_jax.models.qwen3_5 import Qwen35Config, weight_table


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model processes of their own are to load."""
    parser.add_argument("--size", choices=[DEMO, *SIZES], help="0.8B with random weights, or demo on a CPU")
    parser.add_argument(
        "--tokenizer",
        type=tokenizer_directory,
        default=demo_directory(),
        help="of a true size: a directory with tokenizer.json, or .json.xz; the demo model's by default",
    )


def size_by_backend() -> str:
    """The default size, by the backend of a process that is started to say so: this one leaves the device to others."""
    said = subprocess.run(
        [sys.executable, "-c", "import jax; print(jax.default_backend())"], capture_output=True, text=True, check=True
    )
    return DEMO if said.stdout.strip() == "cpu" else "0.8B"


def write_checkpoint(directory: Path, size: str, tokenizer: Path) -> None:
    """Weights, config and template of a size, and a tokenizer from a directory with `tokenizer.json` or `.json.xz`."""
    directory.mkdir(parents=True)
    config = SIZES[size]
    (directory / "config.json").write_text(json.dumps(config_json(config)))
    write_tokenizer(directory, tokenizer)
    save_file(_tensors(config), directory / "model.safetensors")


def write_tokenizer(directory: Path, tokenizer: Path) -> None:
    """A tokenizer from a directory with `tokenizer.json` or `.json.xz`, and the template of the shipped model."""
    packed = tokenizer / "tokenizer.json.xz"
    if packed.is_file():
        with lzma.open(packed) as source, (directory / "tokenizer.json").open("wb") as target:
            shutil.copyfileobj(source, target)
    else:
        shutil.copyfile(tokenizer / "tokenizer.json", directory / "tokenizer.json")
    shutil.copyfile(demo_directory() / "chat_template.jinja", directory / "chat_template.jinja")


def _tensors(config: Qwen35Config) -> dict[str, np.ndarray]:
    """Small numbers everywhere. Drawing each of a billion would take longer than everything else."""
    drawn = (0.02 * np.random.default_rng(SEED).standard_normal(2**20, np.float32)).astype(ml_dtypes.bfloat16)
    table = weight_table(config, np.zeros(1, np.int32))
    shapes = {name: shape for row in table.rows for name, shape in row.sources.items()}
    return {name: np.resize(drawn, math.prod(shape)).reshape(shape) for name, shape in shapes.items()}


def config_json(config: Qwen35Config) -> dict[str, Any]:
    """`config.json` of an architecture."""
    attention, gdn = config.attention, config.gated_delta_net
    axes = attention.rotary.axes
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "intermediate_size": config.feed_forward_width,
        "num_hidden_layers": len(config.layers),
        "layer_types": [kind.value for kind in config.layers],
        "num_attention_heads": attention.query_heads,
        "num_key_value_heads": attention.key_heads,
        "head_dim": attention.head_dim,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": attention.rotary.theta,
            "partial_rotary_factor": attention.rotary.dims / attention.head_dim,
            "mrope_section": [axes.count(axis) for axis in range(3)],
        },
        "linear_num_key_heads": gdn.key_heads,
        "linear_num_value_heads": gdn.value_heads,
        "linear_key_head_dim": gdn.key_dim,
        "linear_value_head_dim": gdn.value_dim,
        "linear_conv_kernel_dim": gdn.conv_taps,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied_head,
        "max_position_embeddings": config.max_tokens,
        "attention_bias": False,
        "hidden_act": "silu",
    }
