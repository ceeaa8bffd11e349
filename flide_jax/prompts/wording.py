"""The words of a question: named, versioned formats. A format is never edited once released; a new version joins it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flide_jax.request import Choice, Content, Question, Score, YesNo


@dataclass(frozen=True)
class Wording:
    """One way to write a request as text: the user turn of a question is `state + "\\n\\n" + block`.

    Attributes:
        name: who words questions this way.
        version: which of their wordings.
        state: the text of a state.
        block: the text of a question whose options carry the given labels. It neither starts nor ends with white space.
    """

    name: str
    version: int
    state: Callable[[Content], str]
    block: Callable[[Question, Sequence[str]], str]


def content_text(content: Content) -> str:
    """Text as it is; structured content as JSON with Python's separators and without escapes for other scripts."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _described(label: str, description: Content | None) -> str:
    """`label: description`, or the bare label where the description is missing or the empty string."""
    return label if description is None or description == "" else f"{label}: {content_text(description)}"


def _option(label: str, name: str, description: Content | None) -> str:
    """`label: name - description`, or `label: name` where the description is missing or the empty string."""
    line = f"{label}: {name}"
    return line if description is None or description == "" else f"{line} - {content_text(description)}"


def _vllm_block(question: Question, labels: Sequence[str]) -> str:
    """Instructions, one line per option and a reply line (paper, figure 6). Empty instructions have no line."""
    lines = [f"Question: {content_text(question.instructions)}"] if question.instructions else []
    match question:
        case YesNo():
            lines += map(_described, labels, (question.yes, question.no))
            lines.append("Answer with yes or no only.")
        case Choice():
            lines += map(_option, labels, question.options.keys(), question.options.values())
            lines.append("Answer with the letter of one option only.")
        case Score():
            lines += map(_described, labels, question.levels)
            lines.append("Answer with the number of one level only.")
    return "\n".join(lines)


WORDINGS = {
    f"{wording.name}/{wording.version}": wording
    for wording in (Wording("vllm", 1, state=content_text, block=_vllm_block),)
}
