"""The demo checkpoint's tokenizer and templates, and variants of them, for the tests of the prompts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import tokenizers

import flide_jax

DEMO = Path(flide_jax.__file__).parent / "demo"
DEMO_TEMPLATE = (DEMO / "chat_template.jinja").read_text("utf-8")

# In the manner of the multimodal templates: a macro walks through content, a scan looks for the last user message.
LARGE_TEMPLATE = """
{%- set images = namespace(count=0) %}
{%- macro shown(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type == 'image' %}
                {%- set images.count = images.count + 1 %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- else %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}
    {{- raise_exception('No messages.') }}
{%- endif %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' ~ (tools | tojson) ~ '<|im_end|>\\n' }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}
    {%- set text = shown(message.content) | trim %}
    {%- if message.role == 'user' and not (text.startswith('<tool_response>') and text.endswith('</tool_response>')) %}
        {%- set last.user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- if last.user < 0 %}
    {{- raise_exception('No user message.') }}
{%- endif %}
{%- for message in messages %}
    {%- set text = shown(message.content) | trim %}
    {%- if message.role == 'assistant' and loop.index0 > last.user %}
        {{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + text + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""

# Text on whose ends and seams tokenizers differ.
NASTY = [
    *("\n", "\n\n", "\r\n", "\r", " ", "   ", "\t", "\x0b", "\x1c", "\x85", "\u00a0", "\u2028", "\u3000"),
    *("a", "Z", "hello", "HELLO", " the", "'s", "'LL", "'\u017f", "\u212a"),
    *("0", "7", "12345", "\u0663", "\u00bd", "\u2163"),
    *('"', "'", "“", "”", "{", "}", '":', '","', "=", "<", "_", "-", "...", "?", "!\n", "\u0000", "\ufffd"),
    *("\u0301", "\u0338", "\u20e3", "\u0345", "\u093f", "e\u0301", "\u1e9b\u0323", "<\u0338", "\u212b", "\ufb06"),
    *("\u1100", "\u1161", "\u11a8", "한", "가\u11a8", "漢字", "かな", "ß", "Ω", "ไทย", "\u0e33"),
    *("👩", "\u200d", "👩\u200d🚀", "👍🏽", "🏽", "\ufe0f", "🇰", "🇰🇷"),
    *("<|im_end|>", "<|im_start|>user\n", "<think>", "</think>\n\n", "<tool_call>", "<|endoftext|>", "<|im_"),
    *("Question:", "yes", "A: ", "user", "http://a.b/c?d=1", '{"a":[1,2,{"b":"c"}]}'),
]


def texts(*, max_parts: int = 12) -> st.SearchStrategy[str]:
    """Text of nasty parts, with any other character between them."""
    part = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs"]), max_size=3))
    return st.lists(part, max_size=max_parts).map("".join)


def tokenizer_json() -> dict[str, Any]:
    return json.loads((DEMO / "tokenizer.json").read_text("utf-8"))


def checkpoint(
    directory: Path,
    *,
    template: str = DEMO_TEMPLATE,
    config: dict[str, Any] | None = None,
    change: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """A directory with the demo tokenizer, `change` made to its JSON, and a template."""
    if change is None:
        (directory / "tokenizer.json").symlink_to(DEMO / "tokenizer.json")
    else:
        changed = tokenizer_json()
        change(changed)
        (directory / "tokenizer.json").write_text(json.dumps(changed), "utf-8")
    (directory / "chat_template.jinja").write_text(template, "utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config or {}), "utf-8")
    return directory


class WholeTokenizer:
    """The oracle: one `tokenizers` object for plain text, made by deleting the added tokens, and never a cut."""

    def __init__(self, content: dict[str, Any]):
        full = tokenizers.Tokenizer.from_str(json.dumps(content))
        self.added = {token.content: token_id for token_id, token in full.get_added_tokens_decoder().items()}
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(content | {"added_tokens": []}))

    def plain(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids

    def prompt(self, content: str) -> list[int]:
        """Token ids of the demo template around a user's text, which is never an added token."""
        ids = [self.added["<|im_start|>"], *self.plain("user\n" + content.strip())]
        for part in ("<|im_end|>", "\n", "<|im_start|>", "assistant\n", "<think>", "\n\n", "</think>", "\n\n"):
            ids += [self.added[part]] if part in self.added else self.plain(part)
        return ids
