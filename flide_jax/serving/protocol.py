"""System One, the wire format of decision requests: a request read from JSON, a response made for JSON.

What the format leaves open is decided here, once for the command line and for a server:

- An unknown field of the request is ignored: clients send their own. The command line says so of one that is like a
  field of this package without its `x_`: whoever wrote a file may correct it, and a client is not to fail. An unknown
  field of a question is refused: it is a misspelt one, and ignoring it would answer another question than was asked.
- `model` may be missing.
- What the format has no field for is asked for in fields of this package's own, whose names begin with `x_`.
- `assets` (images) are refused, since an answer without them would be an answer to another state.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from flide_jax.request import (
    Answer,
    Answers,
    Choice,
    ChoiceAnswer,
    Question,
    Request,
    RequestError,
    Score,
    ScoreAnswer,
    Usage,
    YesNo,
    YesNoAnswer,
    json_kind,
)
from flide_jax.serving import strict_json

_QUESTION_FIELDS = ("type", "instructions", "criteria")
_ON_THE_WIRE = {
    "options": ("criteria",),
    "levels": ("criteria",),
    "yes": ("criteria", "true"),
    "no": ("criteria", "false"),
}
# Options of a request that the format has no field for.
_OWN_FIELDS = {"checkpoints": "x_checkpoints", "cache_salt": "x_cache_salt"}
_LONGEST_WORD = 32


@dataclass(frozen=True)
class WireRequest:
    """A request as it came over the wire.

    Attributes:
        request: what is asked.
        model: the model it is asked of, None where it names none.
        costs: whether the response is to say what each part cost: `"x_costs": true`.
        misnamed: fields that mean nothing, and would be fields of this package with an `x_` before them.
    """

    request: Request
    model: str | None
    costs: bool = False
    misnamed: tuple[str, ...] = ()


def parse_request(text: bytes) -> WireRequest:
    """A request from its JSON text. Raises RequestError: a field, by its place in the JSON, and the rule."""
    return read_request(strict_json.parse(text))


def read_request(value: Any) -> WireRequest:
    """A request from its JSON value. Raises RequestError: the field by its place in the JSON, and the rule."""
    fields = _object(value, ())
    for required in ("state", "questions"):
        if required not in fields:
            raise RequestError((required,), "is required")
    if "assets" in fields:
        raise RequestError(("assets",), "images are not supported")
    model = fields.get("model")
    if "model" in fields and not isinstance(model, str):
        raise RequestError(("model",), f"must be a string, got {json_kind(model)}")
    questions = {
        name: _read_question(name, question) for name, question in _object(fields["questions"], ("questions",)).items()
    }
    options = {option: fields[own] for option, own in _OWN_FIELDS.items() if own in fields}
    with in_words_of_the_wire():
        request = Request(state=fields["state"], questions=questions, **options)
    misnamed = tuple(option for option, own in _OWN_FIELDS.items() if option in fields and own not in fields)
    return WireRequest(request, model, costs=fields.get("x_costs") is True, misnamed=misnamed)


def response(answers: Answers, *, model: str) -> dict[str, Any]:
    """The System One response: ids, option names and levels as they were asked, in that order; no number is rounded."""
    usage = answers.usage
    return {
        "model": model,
        "answers": {name: _answer(answer) for name, answer in answers.items()},
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            **({"x_cached_tokens": usage.resumed_state_tokens} if usage.resumed_state_tokens else {}),
        },
    }


@contextlib.contextmanager
def in_words_of_the_wire() -> Generator[None]:
    """Errors name fields as they are called on the wire, such as `criteria` for the `options` of a question."""
    try:
        yield
    except RequestError as error:
        match error.location:
            case ("questions", name, str(field), *rest) if field in _ON_THE_WIRE:
                raise type(error)(("questions", name, *_ON_THE_WIRE[field], *rest), error.rule) from None
            case (str(field), *rest) if field in _OWN_FIELDS:
                raise type(error)((_OWN_FIELDS[field], *rest), error.rule) from None
        raise


def read_response(request: Request, value: Any) -> Answers:
    """The answers that a response holds. Raises RequestError: a field of the response, and the rule."""
    fields = _object(value, ("response",))
    answers, usage = (_object(fields.get(name), ("response", name)) for name in ("answers", "usage"))
    found: dict[str, Answer] = {}
    for name, question in request.questions.items():
        location = ("response", "answers", name)
        answer = _object(answers.get(name), location)
        try:
            found[name] = _read_answer(question, answer)
        except (KeyError, TypeError, ValueError):
            raise RequestError(location, "is no answer to its question") from None
    match usage:
        case {"input_tokens": int(read), "output_tokens": int(written)}:
            return Answers(found, usage=Usage(input_tokens=read, output_tokens=written))
    raise RequestError(("response", "usage"), "must be counts of tokens")


def _read_answer(question: Question, answer: dict[str, Any]) -> Answer:
    match question:
        case YesNo():
            return YesNoAnswer(float(answer["noul"]))
        case Choice():
            probabilities = {name: float(answer["probabilities"][name]) for name in question.options}
            if answer["choice"] not in probabilities:
                raise ValueError
            return ChoiceAnswer(answer["choice"], float(answer["confidence"]), probabilities)
        case _:
            levels = tuple(question.levels)
            shares = tuple(float(answer["probabilities"][str(i)]) for i in range(len(levels)))
            return ScoreAnswer(float(answer["score"]), float(answer["confidence"]), shares, levels)


def _read_question(name: str, value: Any) -> Question:
    location = ("questions", name)
    fields = _object(value, location)
    for field in fields:
        if field not in _QUESTION_FIELDS:
            raise RequestError((*location, field), f"unknown field, a question has {', '.join(_QUESTION_FIELDS)}")
    if "type" not in fields:
        raise RequestError((*location, "type"), "is required")
    readers: dict[str, Callable[[Mapping[str, Any]], Question]] = {
        "noul": _read_yes_no,
        "choice": lambda fields: Choice(fields.get("instructions"), _required_criteria(fields)),
        "score": lambda fields: Score(fields.get("instructions"), _required_criteria(fields)),
    }
    kind = fields["type"]
    if not isinstance(kind, str) or kind not in readers:
        # A type that is a word is a misspelt one; anything else may be text that is not for logs and errors. In scripts
        # without spaces a whole sentence is an identifier.
        is_word = isinstance(kind, str) and kind.isascii() and kind.isidentifier() and len(kind) <= _LONGEST_WORD
        got = repr(kind) if is_word else json_kind(kind)
        raise RequestError((*location, "type"), f"must be noul, choice or score, got {got}")
    with in_words_of_the_wire():
        try:
            return readers[kind](fields)
        except RequestError as error:
            raise error.within(*location) from None


def _read_yes_no(fields: Mapping[str, Any]) -> YesNo:
    criteria = fields.get("criteria")
    sides = {} if criteria is None else _object(criteria, ("criteria",))
    for side in sides:
        if side not in ("true", "false"):
            raise RequestError(("criteria", side), "unknown field, the criteria of a noul are true and false")
    return YesNo(fields.get("instructions"), yes=sides.get("true"), no=sides.get("false"))


def _required_criteria(fields: Mapping[str, Any]) -> Any:
    if "criteria" not in fields:
        raise RequestError(("criteria",), "is required")
    return fields["criteria"]


def _answer(answer: Answer) -> dict[str, Any]:
    match answer:
        case YesNoAnswer():
            return {"type": "noul", "noul": answer.probability}
        case ChoiceAnswer():
            return {
                "type": "choice",
                "choice": answer.choice,
                "confidence": answer.confidence,
                "probabilities": answer.probabilities,
            }
        case ScoreAnswer():
            return {
                "type": "score",
                "score": answer.score,
                "confidence": answer.confidence,
                "legend": {str(i): level for i, level in enumerate(answer.levels)},
                "probabilities": {str(i): p for i, p in enumerate(answer.probabilities)},
            }


def _object(value: Any, location: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(location, f"must be an object, got {json_kind(value)}")
    return value
