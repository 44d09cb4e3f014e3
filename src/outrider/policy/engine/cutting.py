r"""Where a text can be cut such that the ids of its parts, one after the other, are those of the whole.

Tokenizers split a text into words by a rule and spell each word by itself. A cut where the rule splits anyway changes
nothing if no word depends on what stands beyond it. At an end of a line that ink follows, that is so

- before the `\n` by GPT-2's rule: it is a word alone there, and the space before it is one, be there more text or not;
- after the `\n` by the rule of Llama 3 and that of Qwen: space up to there is never taken apart, nor joined with more.

Of other rules nothing is assumed, and such texts stay whole.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

LEAST_CHARACTERS = 64
"""Of a part but the last: to look up less costs more than to tokenise it with its neighbour."""

_LINE_END = re.compile(r"\n(?=[!-~\w])")
_BEFORE, _AFTER = 0, 1
_SPACE_FIRST = tuple(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + numbers
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for numbers in (r"\p{N}{1,3}", r"\p{N}")
)
"""Of Llama 3 and of Qwen."""


def parts(text: str, cut: int) -> Iterator[str]:
    """The text, cut as `cut_of` says of its tokenizer. After a line that is long enough it is the same as elsewhere."""
    begin = 0
    for found in _LINE_END.finditer(text):
        at = found.start() + cut
        if at - begin >= LEAST_CHARACTERS:
            yield text[begin:at]
            begin = at
    yield text[begin:]


def cut_of(tokenizer: Any) -> int | None:
    """How far from the beginning of a line's end a tokenizer of Hugging Face allows a cut; None: it allows none.

    NFC may come before it: nothing is ever joined with a line's end.
    """
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if (
        _kind(getattr(inner, "model", None)) != "BPE"
        or inner.model.dropout
        or _kind(inner.normalizer) not in ("NoneType", "NFC")
        or inner.truncation is not None
        or inner.padding is not None
        or any(map(_reaches_far, inner.get_added_tokens_decoder().values()))
    ):
        return None
    match _steps(inner.pre_tokenizer):
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return _BEFORE
        case [
            {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if rule in _SPACE_FIRST:
            return _AFTER
    return None


def _reaches_far(added: Any) -> bool:
    """Whether what stands on the other side of a line's end can matter for an added token."""
    return "\n" in added.content or added.lstrip or added.rstrip or added.single_word


def _steps(pre_tokenizer: Any) -> list[Any]:
    """How it splits, step by step; nothing if there are steps that cannot be told, as those of the user's own."""
    is_sequence = _kind(pre_tokenizer) == "Sequence" and hasattr(pre_tokenizer, "__getitem__")
    steps = [*pre_tokenizer] if is_sequence else [pre_tokenizer]
    if {_kind(step) for step in steps} <= {"Split", "ByteLevel"}:
        return [json.loads(step.__getstate__()) for step in steps]
    return []


def _kind(part: Any) -> str:
    return type(part).__name__
