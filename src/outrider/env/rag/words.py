"""The words of a text, as the index knows them."""

import re

_WORDS = re.compile(r"\w+")
_SHORTEST_PLURAL = 4

_COMMON = """
a an and are as at be but by did do does for from had has have he her his how i if in into is it its not of on or she
that the their them then there these they this to was were what when where which who whom whose why will with you your
"""
STOP_WORDS = frozenset(_COMMON.split())


def words_of(text: str) -> list[str]:
    """Lower case, without stop words, plurals and singulars alike."""
    return [_singular(word) for word in _WORDS.findall(text.casefold()) if word not in STOP_WORDS]


def _singular(word: str) -> str:
    if len(word) < _SHORTEST_PLURAL or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    return word[:-1]
