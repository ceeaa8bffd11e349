"""A checkpoint's chat template: the text it puts around one user turn, thinking off, generation prompt on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Openings of a reasoning block, each with what closes it.
_REASONING = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
}
# Stands for what a user writes, and for a reply, while a template is examined.
_USER, _REPLY = "What a user wrote: 0123.", "What a model replied: 4567."
# Content that a template might read as its own syntax, or rewrite.
_PROBES = (
    f" \n\t{_USER}\u00a0\r\n ",
    f"{_USER}\n<think>\n\n</think>\n\n<tool_response> {{{{ x }}}} {{% y %}} </tool_response> {_USER}",
    f"<b>&amp;\"'\\ <tool_call> /no_think {_USER}",
    f"\u1112\u1161\u11ab e\u0301 \u2028 <|im_end|>\n<|im_start|>system\n{_USER}",
)


@dataclass(frozen=True)
class Frame:
    """What the template writes around a user's text: the rendering is `head + text + tail`.

    Attributes:
        head: everything before the text.
        tail: everything after it; it ends with the generation prompt.
        trims: whether the text loses white space at both ends (`str.strip`), as with the template filter `trim`.
    """

    head: str
    tail: str
    trims: bool

    def render(self, text: str) -> str:
        """The rendering of a user's text."""
        return self.head + (text.strip() if self.trims else text) + self.tail


class ChatTemplate:
    """A chat template that was found to put a user's text, unchanged but for trimming, into a fixed frame.

    Args:
        source: the template in Jinja.
        variables: what else it may read, such as `bos_token`.

    Raises:
        ValueError: the template cannot be rendered.
        NotImplementedError: the template drops or rewrites what the user says, or replies must begin with reasoning
            even with thinking off. A decision is read at the first token of the reply.
    """

    def __init__(self, source: str, variables: dict[str, Any]):
        self._source = source
        self._variables = variables
        self.frame = self._find_frame()
        self._refuse_reasoning()

    @classmethod
    def load(cls, directory: Path) -> "ChatTemplate":
        """The template of a checkpoint directory: `chat_template.jinja`, else the key in `tokenizer_config.json`.

        Raises:
            ValueError: there is no template, or a file cannot be read.
        """
        config_path, template_path = directory / "tokenizer_config.json", directory / "chat_template.jinja"
        try:
            config = json.loads(config_path.read_text("utf-8")) if config_path.is_file() else {}
            if not isinstance(config, dict):
                raise ValueError("it holds no object")
            source = template_path.read_text("utf-8") if template_path.is_file() else config.get("chat_template")
        except ValueError as error:
            raise ValueError(f"{directory}: the chat template or tokenizer_config.json is damaged: {error}") from None
        if isinstance(source, list):  # Several templates by name.
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        if not isinstance(source, str):
            raise ValueError(f"{directory} has no chat template, in chat_template.jinja or tokenizer_config.json")
        tokens = {key: value for key, value in config.items() if key.endswith("_token")}
        contents = {key: value.get("content") if isinstance(value, dict) else value for key, value in tokens.items()}
        try:
            return cls(source, {key: value for key, value in contents.items() if isinstance(value, str)})
        except (ValueError, NotImplementedError) as error:
            raise type(error)(f"{directory}: {error}") from None

    def check(self, text: str) -> None:
        """Renders a user's text with the template itself and compares it with the frame.

        Raises:
            NotImplementedError: the template treats this text in a way of its own.
        """
        if self._render(text) != self.frame.render(text):
            raise NotImplementedError("the chat template rewrites the text of this request")

    def _find_frame(self) -> Frame:
        rendered = self._render(_USER)
        if rendered.count(_USER) != 1:
            raise NotImplementedError("the chat template does not repeat the user's text once and unchanged")
        head, tail = rendered.split(_USER)
        for frame in (Frame(head, tail, trims=True), Frame(head, tail, trims=False)):
            if all(self._render(probe) == frame.render(probe) for probe in _PROBES):
                return frame
        raise NotImplementedError("the chat template rewrites the user's text")

    def _refuse_reasoning(self) -> None:
        tail = self.frame.tail
        for opening, closing in _REASONING.items():
            if tail.rfind(opening) > tail.rfind(closing):
                raise NotImplementedError(f"the chat template opens {opening} even with thinking off")
        try:
            replied = self._render(_USER, reply=_REPLY)
        except ValueError:
            return  # It renders no replies, so it says nothing about how they begin.
        before_reply, generation = replied.partition(_REPLY)[0], self.frame.render(_USER)
        if before_reply.startswith(generation) and (extra := before_reply[len(generation) :].strip()):
            raise NotImplementedError(f"the chat template begins every reply with {extra!r}, even with thinking off")

    def _render(self, text: str, *, reply: str | None = None) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template  # A second to import.

        messages = [{"role": "user", "content": text}]
        if reply is not None:
            messages.append({"role": "assistant", "content": reply})
        try:
            renderings: Any = render_jinja_template(
                [messages],
                chat_template=self._source,
                add_generation_prompt=reply is None,
                enable_thinking=False,
                **self._variables,
            )
        except Exception as error:  # A template is a program of its own: it can raise anything.
            raise ValueError(f"the chat template cannot be rendered: {' '.join(str(error).split())}") from None
        return str(renderings[0][0])
