"""Places where a text may be cut so that its parts, tokenised apart, give the tokens of the whole.

The claim. Let a tokenizer be NFC, then a split by one of `PROVEN_PATTERNS`, then ByteLevel without prefix space or
pattern of its own, then BPE. Cut a text between two ASCII characters x | y where
    (a) x is a letter or a digit and y is not a letter, or
    (b) x is a line feed and y is a letter or a digit.
Then tokens(left + right) = tokens(left) + tokens(right).

The proof, step by step of such a tokenizer:
1. NFC. An ASCII y is a starter that composes with nothing before it, so normalisation never looks across the cut:
   NFC(left + right) = NFC(left) + NFC(right). x stays what it is (a mark that could change it would stand where y
   stands). y may compose with marks after it, a letter into a letter, and any other character into one that is still
   neither letter nor mark nor digit nor white space (`<` and U+0338 into U+226E).
2. No match crosses the cut. The alternatives of the patterns are, with their names below,
       contraction (?i:'s|'t|...)   word [^\\r\\n L N]?[L M]+   number N   symbols ` ?[^\\s L M N]+[\\r\\n]*`
       lines \\s*[\\r\\n]+          blanks \\s+(?!\\S), \\s+
   (a) After a letter only contraction and word go on, and only with a letter or a mark. A digit is a match by itself.
   (b) After a line feed, symbols goes on with line breaks only, lines and blanks with white space only; word takes no
   line feed; a letter or digit is none of these.
3. The matches left of the cut do not depend on what is right of it. Every alternative is a greedy run of a class that
   ends at the cut at the latest, whether y or the end of the text stands there; the one look-ahead is that of blanks,
   one character behind white space. In (a) x is not white space, so that character is x or stands before it. In (b) a
   run of white space that reaches the cut ends in x, a line feed, so lines, which is tried first, has matched it.
4. The matches right of the cut do not depend on what is left of it: the patterns look behind nowhere.
5. ByteLevel and BPE work inside one match. QED.

(With `word` as in Qwen2 and Qwen3, [^\\r\\n L N]?L+, a mark is a symbol, and the same steps hold.)
"""

import re

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_WORD = r"|\p{N}| ?[^\s%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PROVEN_PATTERNS = frozenset(
    {
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" + _AFTER_WORD % r"\p{L}\p{M}",  # Qwen3.5
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+" + _AFTER_WORD % r"\p{L}",  # Qwen2, Qwen3
    }
)
PIECE = 1024
"""Characters from which on a piece of a long text ends at the next safe cut."""

_SAFE_CUT = re.compile(r"[0-9A-Za-z](?=[\x00-@\[-`{-\x7f])|\n(?=[0-9A-Za-z])")


def is_safe_cut(left: str, right: str) -> bool:
    """Whether `left + right` may be cut between the two, for a tokenizer of the kind above."""
    return not left or _SAFE_CUT.match(left[-1:] + right[:1]) is not None


def pieces(text: str) -> list[str]:
    """A text as pieces of about `PIECE` characters or more, cut at safe places. Without safe places it is one piece."""
    found = []
    start = 0
    while len(text) - start >= 2 * PIECE and (cut := _SAFE_CUT.search(text, start + PIECE - 1)):
        found.append(text[start : cut.end()])
        start = cut.end()
    return [*found, text[start:]]
