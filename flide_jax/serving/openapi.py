"""The routes as OpenAPI 3.1, for tools that read it."""

from typing import Any

from flide_jax.request import MAX_LEVELS, MAX_OPTIONS, MAX_SALT
from flide_jax.serving.admission import Limits

NOT_BLANK = r"[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""A character that is no white space, for Python; JSON Schema's own classes differ from it."""
_EACH = "Answer many requests, each on its own; what is no JSON, or nested too deep to read, is refused as a whole"
_SCHEMAS = "#/components/schemas/"


def describe(*, name: str, alias: str, version: str, limits: Limits) -> dict[str, Any]:
    """The document.

    Args:
        name: of the model that is served.
        alias: what clients may call it as well.
        version: of this package.
        limits: what the server takes.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "flide-jax",
            "version": version,
            "description": "Decision models over the System One protocol: one state, many questions, a probability for "
            "every option.",
        },
        "paths": {
            "/v1/systemone": {"post": _asking("Answer the questions about a state", "Request", "Response")},
            "/v1/systemone/batch": {"post": _asking(_EACH, "Batch", "BatchResponse")},
            "/v1/models": {"get": _getting("The model that is served", "Models", "401")},
            "/health": {"get": _getting("200 when it can answer, 503 when not", "Health", "503")},
        },
        "components": {
            "schemas": _requests(name, alias, limits) | _responses(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _asking(summary: str, takes: str, gives: str) -> dict[str, Any]:
    errors = {
        "400": "an unknown model, too many tokens, or a header that cannot be used",
        "401": "no key, or a wrong one",
        "408": "the body did not arrive in time",
        "413": "the body is too large",
        "415": "a content encoding or type that is not read",
        "429": "the queue is full; `retry-after` says when to come back",
        "500": "the model or its device failed with this request",
        "503": "the model loads, or the device is lost",
        "504": "no answer in time",
    }
    return {
        "summary": summary,
        "description": "After as many milliseconds as the header x-request-timeout-ms says it is given up. The header "
        "x-request-id comes back as it was sent.",
        "requestBody": {"required": True, "content": _json(takes)},
        "responses": {
            "200": {"description": "answered", "content": _json(gives)},
            "422": {"description": "what is wrong with the body, and where", "content": _json("Invalid")},
            **{status: {"description": about, "content": _json("Error")} for status, about in errors.items()},
        },
    }


def _getting(summary: str, gives: str, other: str) -> dict[str, Any]:
    other_content = _json("Error" if other == "401" else gives)
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "found", "content": _json(gives)},
            other: {"description": "not found", "content": other_content},
        },
    }


def _requests(name: str, alias: str, limits: Limits) -> dict[str, Any]:
    content = {
        "description": "text, or JSON that the model reads as text",
        "anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array"}],
    }
    optional = {"anyOf": [_ref("Content"), {"type": "null"}]}

    def question(kind: str, criteria: dict[str, Any], *required: str) -> dict[str, Any]:
        properties = {"type": {"const": kind}, "instructions": optional, "criteria": criteria}
        return _object(properties, "type", *required, closed=True)

    sides = _object({"true": optional, "false": optional}, closed=True)
    options = {
        "type": "object",
        "description": "name -> description, in the order in which the model reads them",
        "additionalProperties": optional,
        "propertyNames": {"pattern": NOT_BLANK},
        "minProperties": 1,
        "maxProperties": MAX_OPTIONS,
    }
    levels = {
        "type": "array",
        "description": "lowest first",
        "items": _ref("Content"),
        "minItems": 1,
        "maxItems": MAX_LEVELS,
    }
    questions = {
        "type": "object",
        "description": "ids, which the model never reads, and questions",
        "additionalProperties": _ref("Question"),
        "propertyNames": {"minLength": 1},
        "minProperties": 1,
    }
    asked = {
        "model": {"enum": [name, alias]},
        "state": _ref("Content"),
        "questions": questions,
        "x_costs": {"description": "true: the response says what each part cost"},
        "x_checkpoints": {
            "type": "boolean",
            "description": "whether the state may be resumed from a checkpoint, and leave one, where there are any",
        },
        "x_cache_salt": {
            "type": "string",
            "description": "of the requests of one client, only those of the same salt share checkpoints",
            "maxLength": MAX_SALT,
        },
        "assets": False,
    }
    several = {"type": "array", "items": _ref("Request"), "minItems": 1, "maxItems": limits.batch_requests}
    return {
        "Content": content,
        "Question": {"oneOf": [_ref("Noul"), _ref("Choice"), _ref("Score")]},
        "Noul": question("noul", {"anyOf": [sides, {"type": "null"}]}),
        "Choice": question("choice", options, "criteria"),
        "Score": question("score", levels, "criteria"),
        "Request": _object(asked, "state", "questions"),
        "Batch": _object({"requests": several}, "requests"),
    }


def _responses() -> dict[str, Any]:
    share = {"type": "number", "minimum": 0, "maximum": 1}
    shares = {"type": "object", "additionalProperties": share, "minProperties": 1}
    text, count = {"type": "string"}, {"type": "integer", "minimum": 0}
    time = {"type": "number", "minimum": 0}

    def answer(kind: str, **fields: Any) -> dict[str, Any]:
        return _object({"type": {"const": kind}, **fields}, "type", *fields)

    answers = [
        answer("noul", noul=share),
        answer("choice", choice=text, confidence=share, probabilities=shares),
        answer("score", score=time, confidence=share, legend={"type": "object"}, probabilities=shares),
    ]
    counts = {"input_tokens": count, "output_tokens": count, "x_cached_tokens": count}
    usage = _object(counts, "input_tokens", "output_tokens")
    costs = {
        "state_tokens": count,
        "question_tokens": {"type": "object", "additionalProperties": count},
        "plan_ms": time,
        "wait_ms": time,
        "round_ms": time,
    }
    response = {
        "model": text,
        "answers": {"type": "object", "additionalProperties": {"oneOf": answers}, "minProperties": 1},
        "usage": usage,
        "x_costs": _object(costs, *costs),
    }
    place = {"type": "array", "items": {"type": ["string", "integer"]}}
    wrong = _object({"loc": place, "msg": text, "type": text}, "loc", "msg", "type")
    typed = _object({"error_type": text, "message": text}, "error_type", "message")
    invalid = {"type": "array", "items": wrong, "minItems": 1}
    refused = _object({"status": count, "detail": {"anyOf": [typed, invalid]}}, "status", "detail")
    one = {"anyOf": [_ref("Response"), _object({"error": refused}, "error")]}
    model = _object({"name": text, "description": text, "release_date": text}, "name", "description", "release_date")
    health = {
        "status": text,
        "model": text,
        "dtype": {"type": ["string", "null"]},
        "batch_invariant": {"type": ["boolean", "null"]},
        "version": text,
    }
    return {
        "Response": _object(response, "model", "answers", "usage"),
        "BatchResponse": _object({"responses": {"type": "array", "items": one}}, "responses"),
        "Invalid": _object({"detail": invalid}, "detail"),
        "Error": _object({"detail": typed}, "detail"),
        "Models": _object({"models": {"type": "array", "items": model}}, "models"),
        "Health": _object(health, *health),
    }


def _object(properties: dict[str, Any], *required: str, closed: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    found |= {"required": list(required)} if required else {}
    return found | ({"additionalProperties": False} if closed else {})


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"{_SCHEMAS}{name}"}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(name)}}
