"""The metric on the accessibility tree: elements that must be there, found by a part of XPath or of CSS."""

import re
from typing import Any, Literal
from xml.etree import ElementTree as ET

from msgspec import Struct

from outrider.env.osworld.metrics.metric import text_of
from outrider.env.osworld.metrics.values import alike

_PATHS = {
    "st": "state",
    "attr": "attributes",
    "cp": "component",
    "doc": "document",
    "docattr": "document/attributes",
    "txt": "text",
    "val": "value",
    "act": "action",
    "class": "class",
    "role": "role",
}
_TEST = re.compile(
    r"""\[\s*(?:(?P<space>\w+)\|)?(?P<name>[\w-]+)\s*(?:=\s*(?P<value>"[^"]*"|'[^']*'|[^\]"'\s]+)\s*)?\]"""
)
_TOKEN = re.compile(r"""\s*(?P<child>>)?\s*(?P<compound>(?:[\w*-]|\[(?:"[^"]*"|'[^']*'|[^\]"'])*\])+)""")
_MOST_CHARS = 50_000_000


class TreeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose names the tree's attributes have."""

    osname: Literal["ubuntu", "windows", "macos"] = "ubuntu"


class TreeRule(Struct, frozen=True):
    """Elements of which there must be one, by `xpath` or else by any of the `selectors`.

    `text`: what one of them must hold, or with `exact` false be like.
    """

    xpath: str | None = None
    selectors: tuple[str, ...] = ()
    text: str | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        if self.xpath is None and not self.selectors:
            raise ValueError("a rule has neither xpath nor selectors")
        document = ET.Element("document")
        for path in self.paths():
            try:
                document.findall(path, _namespaces("ubuntu"))
            except (SyntaxError, LookupError, TypeError, ValueError) as exc:
                raise ValueError(f"{path!r} is more than the XPath that is understood here") from exc

    def paths(self) -> tuple[str, ...]:
        """As paths from the document that holds the tree."""
        if self.xpath is not None:
            return ("." + self.xpath if self.xpath.startswith("/") else f"./*/{self.xpath}",)
        single = [part for selector in self.selectors for part in selector.split(",")]
        return tuple(_as_path(selector) for selector in single)


def _as_path(selector: str) -> str:
    """A CSS selector of tags, attributes, descendants and children as a path."""
    path, position, text = ".", 0, selector.strip()
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"{selector!r} is more than the CSS that is understood here")
        path += ("/" if token["child"] else "//") + _compound_path(token["compound"], selector)
        position = token.end()
    if path == ".":
        raise ValueError("a selector is empty")
    return path


def _compound_path(compound: str, selector: str) -> str:
    found = re.match(r"\*|[\w-]+", compound)
    tag = found[0] if found else "*"
    rest = compound[len(found[0]) if found else 0 :]
    tests = list(_TEST.finditer(rest))
    if "".join(test[0] for test in tests) != rest:
        raise ValueError(f"{selector!r} is more than the CSS that is understood here")
    return tag + "".join(_test_path(test) for test in tests)


def _test_path(test: re.Match[str]) -> str:
    name = f"{test['space']}:{test['name']}" if test["space"] else test["name"]
    if test["value"] is None:
        return f"[@{name}]"
    value = test["value"].strip("\"'")
    quote = '"' if "'" in value else "'"
    return f"[@{name}={quote}{value}{quote}]"


def check_accessibility_tree(result: Any, rules: tuple[TreeRule, ...], options: TreeOptions) -> float:
    """The product of how well each rule is met. A tree that cannot be read meets none."""
    text = text_of(result)
    # A tree comes from the machine an agent works on: entities could make it grow without end.
    if text is None or len(text) > _MOST_CHARS or "<!DOCTYPE" in text:
        return 0.0
    try:
        root = ET.fromstring(text)  # noqa: S314 no document type, so no entities
    except ET.ParseError:
        return 0.0
    document = ET.Element("document")
    document.append(root)
    spaces = _namespaces(options.osname)
    total = 1.0
    for rule in rules:
        elements = [element for path in rule.paths() for element in document.findall(path, spaces)]
        total *= max((_met(rule, element.text or "") for element in elements), default=0.0)
    return total


def _met(rule: TreeRule, text: str) -> float:
    if rule.text is None:
        return 1.0
    return float(text == rule.text) if rule.exact else alike(rule.text, text)


def _namespaces(osname: str) -> dict[str, str]:
    return {part: f"https://accessibility.{osname}.example.org/ns/{path}" for part, path in _PATHS.items()}
