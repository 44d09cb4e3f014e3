"""Which language a text is in: by its script, and among languages that share one, by their most frequent words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

_SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        "ARABIC": "ar fa ur",
        "BENGALI": "bn",
        "CYRILLIC": "bg ru uk",
        "DEVANAGARI": "hi mr ne",
        "GREEK": "el",
        "GUJARATI": "gu",
        "GURMUKHI": "pa",
        "HANGUL": "ko",
        "HEBREW": "he",
        "HIRAGANA": "ja",
        "KATAKANA": "ja",
        "CJK": "zh",
        "KANNADA": "kn",
        "MALAYALAM": "ml",
        "TAMIL": "ta",
        "TELUGU": "te",
        "THAI": "th",
        "LATIN": "de en es fi fr id it nl pl pt sv sw tr vi",
    }
)

_WORDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        language: frozenset(words.split())
        for language, words in {
            "ar": "في من على إلى أن هذا التي الذي كان هذه مع عن ما هو هي",
            "fa": "در به از که این است را با برای آن می های یک خود تا",
            "ur": "کے کی میں ہے اور سے کا کو نے پر ہیں یہ کہ ایک اس",
            "bg": "на да се от за това не са като със по във който ще или",
            "ru": "и в не на что он это как но из для по его так был",
            "uk": "і та що не на це як або для від які цей його є він",
            "hi": "के है में की और से को का पर यह हैं कि ने एक नहीं",
            "mr": "आहे आणि च्या हे या ते आहेत करण्यासाठी मध्ये एक तो ती होते साठी असे",
            "ne": "छ र को मा छन् गर्न यो पनि हुन्छ लागि भएको तपाईं गर्नुहोस् लाई थियो",
            "de": "der die das und ist nicht ein eine zu den mit von ich es auf für sich",
            "en": "the and is of to in that it you for with are this was as on not",
            "es": "el la de que y en los se las por un una con para es su no",
            "fi": "ja on ei se että hän oli ovat mutta kun tai niin myös kuin olla voi",
            "fr": "le la les de et est des un une que pour dans qui pas vous ce il",
            "id": "yang dan di dengan untuk ini itu dari tidak adalah pada ke akan dalam saya",
            "it": "il la di che e un una per non sono con le del è si della i",
            "nl": "de het een en van is dat niet te op zijn voor met in je ik aan",
            "pl": "i w na nie się z do to jest że jak co dla ale od są tego",
            "pt": "o a de que e do da em um uma para não com os as é se",
            "sv": "och att det är en som på för inte med jag av den till har de ett",
            "sw": "na ya wa kwa ni katika za la kuwa hii yake kama watu cha lakini huu",
            "tr": "ve bir bu da de için ile çok ne daha gibi olarak kadar ama sonra değil",
            "vi": "và của là có trong cho được một không các với người này để đã những",
        }.items()
    }
)

_BETWEEN_WORDS = re.compile(r"[\s.,;:!?()\[\]\"'«»“”।،؟۔*]+")

LANGUAGES: tuple[str, ...] = tuple(sorted({language for names in _SCRIPTS.values() for language in names.split()}))
"""Those that are known, by their codes in ISO 639-1."""


def is_in_language(text: str, language: str) -> bool:
    """Whether most of `text` is in this language."""
    return _language_of(text) == language


def _language_of(text: str) -> str | None:
    scripts = Counter(_script(letter) for letter in text if letter.isalpha())
    if not scripts:
        return None
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > scripts["CJK"] // 10 and scripts["CJK"] > scripts["LATIN"]:
        return "ja"
    candidates = _SCRIPTS.get(scripts.most_common(1)[0][0], "").split()
    if len(candidates) == 1:
        return candidates[0]
    words = Counter(_BETWEEN_WORDS.split(text.casefold()))
    scores = {name: sum(n for word, n in words.items() if word in _WORDS[name]) for name in candidates}
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best is not None and scores[best] else None


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]
