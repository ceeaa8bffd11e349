"""The page for a person, `page.html`: everything that it needs stands in it, and nothing else may run in it."""

import base64
import hashlib
import importlib.resources
import re


def read_page() -> tuple[bytes, dict[str, str]]:
    """The page, and the headers that go with it."""
    page = (importlib.resources.files("flide_jax") / "serving" / "page.html").read_bytes()
    own = f"script-src {_hash(page, b'script')}; style-src {_hash(page, b'style')}; connect-src 'self'"
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": f"default-src 'none'; {own}; base-uri 'none'; frame-ancestors 'none'",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return page, headers


def _hash(page: bytes, tag: bytes) -> str:
    """The one element of a kind, as a content security policy names it."""
    (content,) = re.findall(b"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"
