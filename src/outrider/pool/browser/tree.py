"""What is on a page as XML, with the attributes that OSWorld's accessibility trees have."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

SPACE = "https://accessibility.ubuntu.example.org/ns"
_STATES = ("focused", "checked", "disabled", "expanded", "selected", "pressed", "readonly", "required")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HIDDEN = frozenset({"none", "generic", "InlineTextBox", "LineBreak"})

Box = tuple[int, int, int, int]

ET.register_namespace("st", f"{SPACE}/state")
ET.register_namespace("cp", f"{SPACE}/component")
ET.register_namespace("val", f"{SPACE}/value")


def boxes(snapshot: Mapping[str, Any]) -> dict[int, Box]:
    """Where the elements of a page are, by their number in the browser, from `DOMSnapshot.captureSnapshot`."""
    found: dict[int, Box] = {}
    for document in snapshot["documents"]:
        numbers: Sequence[int] = document["nodes"]["backendNodeId"]
        left, top = document.get("scrollOffsetX", 0), document.get("scrollOffsetY", 0)
        for index, (x, y, width, height) in zip(
            document["layout"]["nodeIndex"], document["layout"]["bounds"], strict=True
        ):
            found[numbers[index]] = (round(x - left), round(y - top), round(width), round(height))
    return found


def xml(nodes: Iterable[Mapping[str, Any]], places: Mapping[int, Box]) -> str:
    """A tree as `Accessibility.getFullAXTree` tells it. What says nothing is left out, and what is in it is not."""
    told = {node["nodeId"]: node for node in nodes}
    root = ET.Element("desktop-frame", {"name": "main"})
    tops = [node for node in told.values() if node.get("parentId") not in told]
    waiting = [(node, root) for node in reversed(tops)]
    while waiting:
        node, above = waiting.pop()
        role = str(node.get("role", {}).get("value", "none"))
        if not node.get("ignored") and role not in _HIDDEN:
            above = _element(above, role, node, places.get(node.get("backendDOMNodeId", -1)))
        waiting += [(told[child], above) for child in reversed(node.get("childIds", ())) if child in told]
    return ET.tostring(root, encoding="unicode")


def _element(above: ET.Element, role: str, node: Mapping[str, Any], box: Box | None) -> ET.Element:
    tag = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", role).lower()).strip("-") or "unknown"
    element = ET.SubElement(above, tag, {"name": _text(node.get("name", {}).get("value", ""))})
    if "value" in node:
        element.set(f"{{{SPACE}/value}}value", _text(node["value"].get("value", "")))
    if box is not None:
        x, y, width, height = box
        element.set(f"{{{SPACE}/component}}screencoord", f"({x}, {y})")
        element.set(f"{{{SPACE}/component}}size", f"({width}, {height})")
    states = {state["name"]: state["value"].get("value") for state in node.get("properties", ())}
    for name in _STATES:
        if states.get(name) in (True, "true", "mixed"):
            element.set(f"{{{SPACE}/state}}{name}", "true")
    return element


def _text(value: object) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(value))
