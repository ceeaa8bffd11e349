"""The logical tree of a decision request, before any token: a state, questions about it, and their answers.

In the paper's terms: r = (s, q_1..q_n), and the p_i of Eq. 1. Every constructor validates and copies what it is given,
so a request that exists is a valid one. Structured content is copied, not frozen: changing it changes the request that
holds it, unchecked. So nothing that may hold content can be hashed. A refusal is a `RequestError`: it names the field
and the rule. (`no_type_check` leaves the refusing to the constructors where
annotations are checked at run time, as in the tests.)
"""

import functools
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float64

type Content = str | dict[str, Any] | list[Any]
"""Text, or structured JSON: an object or an array of strings, finite numbers, booleans, nulls, objects and arrays."""

MAX_OPTIONS = 255
MAX_LEVELS = 10
MAX_SALT = 256
"""Most characters of a `cache_salt`: it is kept with every checkpoint."""
MAX_DEPTH = 100
"""Deepest nesting of structured content. It keeps hostile input from exhausting the stack, here and in `json`."""
MAX_INTEGER_DIGITS = 4_200
"""Longest integer in structured content. Python neither reads nor writes more than 4,300 decimal digits."""
_INTEGER_BOUND = 10**MAX_INTEGER_DIGITS


class RequestError(ValueError):
    """A request breaks a rule.

    Args:
        location: where, from the outside in: `("questions", "action", "options")`. What reads another format names its
            fields instead.
        rule: what is allowed, and what was found instead, in one line.
    """

    def __init__(self, location: Sequence[str | int], rule: str):
        self.location = tuple(location)
        self.rule = rule
        super().__init__(self.location, rule)

    def __str__(self) -> str:
        parts = (part if (part := str(key)).isprintable() else ascii(part) for key in self.location)
        place = ".".join(parts)
        return f"{place}: {self.rule}" if place else self.rule

    def within(self, *outer: str | int) -> "RequestError":
        """The same error seen from further out: a question's `options` become `questions.action.options`."""
        return RequestError((*outer, *self.location), self.rule)


class TooLongError(RequestError):
    """A request has more tokens than the model or the engine takes."""


@no_type_check
@dataclass(frozen=True)
class YesNo:
    """A yes-or-no question (`noul` on the wire). Both descriptions are optional, each on its own.

    Args:
        instructions: the question itself.
        yes: what counts as a yes (`criteria.true`).
        no: what counts as a no (`criteria.false`).
    """

    __hash__ = None  # type: ignore[assignment]
    instructions: Content | None = None
    _: KW_ONLY
    yes: Content | None = None
    no: Content | None = None

    def __post_init__(self) -> None:
        _freeze(self, "instructions", _optional_content(self.instructions, ("instructions",)))
        _freeze(self, "yes", _optional_content(self.yes, ("yes",)))
        _freeze(self, "no", _optional_content(self.no, ("no",)))


@no_type_check
@dataclass(frozen=True)
class Choice:
    """A choice of one option among 1 to 255.

    Option names are text with at least one character that is not white space, and are otherwise free: line breaks,
    leading spaces, any script. They are compared, and returned, byte for byte: names that differ only in case, spaces
    or Unicode normalisation are two options.

    Args:
        instructions: the question itself.
        options: name -> description or None, in the order in which the model reads them.
    """

    __hash__ = None  # type: ignore[assignment]
    instructions: Content | None = None
    options: Mapping[str, Content | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _freeze(self, "instructions", _optional_content(self.instructions, ("instructions",)))
        if not isinstance(self.options, Mapping):
            raise RequestError(("options",), f"must be an object of option names, got {json_kind(self.options)}")
        if not 1 <= len(self.options) <= MAX_OPTIONS:
            raise RequestError(("options",), f"1 to {MAX_OPTIONS} options are allowed, got {len(self.options)}")
        options: dict[str, Content | None] = {}
        for key, description in self.options.items():
            name = _text(key, ("options",), "an option name")
            if not name.strip():
                raise RequestError(("options",), f"an option name must not be blank, got {ascii(name)}")
            if name in options:
                raise RequestError(("options", name), "option names must be distinct")
            options[name] = _optional_content(description, ("options", name))
        _freeze(self, "options", types.MappingProxyType(options))

    def __reduce__(self) -> tuple[Any, ...]:
        return Choice, (self.instructions, dict(self.options))


@no_type_check
@dataclass(frozen=True)
class Score:
    """A rating on 1 to 10 levels, lowest first. The score is a position, never a number written in a level's text.

    Args:
        instructions: the question itself.
        levels: what each level means.
    """

    __hash__ = None  # type: ignore[assignment]
    instructions: Content | None = None
    levels: Sequence[Content] = ()

    def __post_init__(self) -> None:
        _freeze(self, "instructions", _optional_content(self.instructions, ("instructions",)))
        if not isinstance(self.levels, (list, tuple)):
            raise RequestError(("levels",), f"must be an array of levels, lowest first, got {json_kind(self.levels)}")
        if not 1 <= len(self.levels) <= MAX_LEVELS:
            raise RequestError(("levels",), f"1 to {MAX_LEVELS} levels are allowed, got {len(self.levels)}")
        levels = tuple(_content(level, ("levels", index)) for index, level in enumerate(self.levels))
        _freeze(self, "levels", levels)


type Question = YesNo | Choice | Score


@no_type_check
@dataclass(frozen=True)
class Request:
    """A state and the questions about it, one decision request.

    Args:
        state: what the model reads first. It may be empty or blank.
        questions: id -> question, at least one. An id is any text of one character or more; the model never reads it,
            and the answers return it byte for byte.
        checkpoints: whether an engine that keeps checkpoints may resume this state from one, and may keep one of it.
        cache_salt: any text of at most 256 characters. Only requests of the same salt share checkpoints, so it keeps
            apart whose states must not show in the time that others wait.
    """

    __hash__ = None  # type: ignore[assignment]
    state: Content
    questions: Mapping[str, Question]
    _: KW_ONLY
    checkpoints: bool = True
    cache_salt: str = ""

    def __post_init__(self) -> None:
        _freeze(self, "state", _content(self.state, ("state",)))
        if not isinstance(self.checkpoints, bool):
            raise RequestError(("checkpoints",), f"must be a boolean, got {json_kind(self.checkpoints)}")
        _freeze(self, "cache_salt", _text(self.cache_salt, ("cache_salt",), "a salt"))
        if len(self.cache_salt) > MAX_SALT:
            raise RequestError(("cache_salt",), f"{MAX_SALT} characters are allowed, got {len(self.cache_salt)}")
        if not isinstance(self.questions, Mapping):
            raise RequestError(("questions",), f"must be an object of questions, got {json_kind(self.questions)}")
        if not self.questions:
            raise RequestError(("questions",), "at least one question is required")
        questions: dict[str, Question] = {}
        for key, question in self.questions.items():
            name = _text(key, ("questions",), "a question id")
            if not name:
                raise RequestError(("questions", name), "a question id must not be empty")
            if not isinstance(question, (YesNo, Choice, Score)):
                raise RequestError(("questions", name), f"must be YesNo, Choice or Score, got {json_kind(question)}")
            questions[name] = question
        _freeze(self, "questions", types.MappingProxyType(questions))

    def __reduce__(self) -> tuple[Any, ...]:
        made = functools.partial(Request, checkpoints=self.checkpoints, cache_salt=self.cache_salt)
        return made, (self.state, dict(self.questions))


@dataclass(frozen=True)
class YesNoAnswer:
    """The probability of yes."""

    probability: float

    @classmethod
    def of(cls, question: YesNo, probabilities: Float64[np.ndarray, "2"]) -> "YesNoAnswer":
        """The answer from the probabilities of (yes, no)."""
        return cls(probability=float(probabilities[0]))


@dataclass(frozen=True)
class ChoiceAnswer:
    """The most probable option (the first of equals), TypeSafe's confidence in it, and every option's probability."""

    __hash__ = None  # type: ignore[assignment]
    choice: str
    confidence: float
    probabilities: dict[str, float]

    @classmethod
    def of(cls, question: Choice, probabilities: Float64[np.ndarray, " options"]) -> "ChoiceAnswer":
        """The answer from the probabilities of the options, in their order."""
        names = tuple(question.options)
        return cls(
            choice=names[int(np.argmax(probabilities))],
            confidence=choice_confidence(probabilities),
            probabilities=dict(zip(names, probabilities.tolist(), strict=True)),
        )


@dataclass(frozen=True)
class ScoreAnswer:
    """The expected position sum_i i p_i, TypeSafe's confidence, and each level's probability and meaning."""

    __hash__ = None  # type: ignore[assignment]
    score: float
    confidence: float
    probabilities: tuple[float, ...]
    levels: tuple[Content, ...]

    @classmethod
    def of(cls, question: Score, probabilities: Float64[np.ndarray, " levels"]) -> "ScoreAnswer":
        """The answer from the probabilities of the levels, lowest first."""
        return cls(
            score=math.sumprod(range(len(probabilities)), probabilities.tolist()),
            confidence=score_confidence(probabilities),
            probabilities=tuple(probabilities.tolist()),
            levels=tuple(question.levels),
        )


type Answer = YesNoAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True)
class Usage:
    """What a request cost.

    Attributes:
        input_tokens: the state's once and every question's once.
        output_tokens: one for each question.
        computed_state_tokens, resumed_state_tokens: those of the state that were computed for this request, and those
            that a former one had left in a checkpoint.
    """

    input_tokens: int
    output_tokens: int
    computed_state_tokens: int = 0
    resumed_state_tokens: int = 0


class Answers(Mapping[str, Answer]):
    """The answers of a request by question id, in the request's order, with what they cost in `usage`."""

    def __init__(self, answers: Mapping[str, Answer], *, usage: Usage):
        self._answers = dict(answers)
        self.usage = usage

    def __getitem__(self, question: str) -> Answer:
        return self._answers[question]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"Answers({self._answers!r}, usage={self.usage!r})"


def choice_confidence(probabilities: Float64[np.ndarray, " options"]) -> float:
    """TypeSafe's confidence of a choice: (n m - 1) / (n - 1) within [0, 1], m the largest of n; 1 for one option."""
    n = len(probabilities)
    if n == 1:
        return 1.0
    return min(1.0, max(0.0, (n * float(probabilities.max()) - 1.0) / (n - 1)))


def score_confidence(probabilities: Float64[np.ndarray, " levels"]) -> float:
    """TypeSafe's confidence of a score: max(0, 1 - sum_i p_i |i - k| / D) around the mode k; 1 for a single level.

    D = sum_i |i - (n - 1) / 2| / n is the spread of n equally probable levels.
    """
    n = len(probabilities)
    if n == 1:
        return 1.0
    levels = np.arange(n)
    spread = np.abs(levels - (n - 1) / 2).mean()
    return max(0.0, 1.0 - float(probabilities @ np.abs(levels - np.argmax(probabilities)) / spread))


def json_kind(value: object) -> str:
    """What errors call a value: its JSON type, or its Python type if it has no place in JSON."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return (names | {dict: "an object", list: "an array"}).get(type(value), type(value).__name__)


def _freeze(target: object, name: str, value: object) -> None:
    object.__setattr__(target, name, value)


def _optional_content(value: object, location: tuple[str | int, ...]) -> Content | None:
    return None if value is None else _content(value, location)


def _content(value: object, location: tuple[str | int, ...]) -> Content:
    """A checked copy of content: a string, an object or an array."""
    if not isinstance(value, (str, dict, list)):
        raise RequestError(location, f"must be a string, an object or an array, got {json_kind(value)}")
    checked: Content = _json(value, location, depth=0)
    return checked


def _json(value: object, location: tuple[str | int, ...], *, depth: int) -> Any:
    """A checked copy of any JSON value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, location, "text")
    if isinstance(value, int):
        if abs(int(value)) >= _INTEGER_BOUND:
            raise RequestError(location, f"an integer of more than {MAX_INTEGER_DIGITS:,} digits is not allowed")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RequestError(location, f"NaN and infinities are not JSON, got {float(value)}")
        return float(value)
    if depth == MAX_DEPTH:
        raise RequestError(location, f"objects and arrays may be nested {MAX_DEPTH} deep at most")
    if isinstance(value, list):
        return [_json(item, (*location, index), depth=depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {
            (name := _text(key, location, "a key")): _json(item, (*location, name), depth=depth + 1)
            for key, item in value.items()
        }
    raise RequestError(location, f"must be JSON, got {json_kind(value)}")


def _text(value: object, location: tuple[str | int, ...], what: str) -> str:
    """A plain `str` (subclasses may carry behaviour, as template markup does) that UTF-8 can encode."""
    if not isinstance(value, str):
        raise RequestError(location, f"{what} must be a string, got {json_kind(value)}")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(text[error.start]):04X}"
        raise RequestError(location, f"{what} holds {surrogate} at {error.start}, half a surrogate pair") from None
    return text
