"""The README as a package index shows it: what is relative in a checkout leads nowhere there."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\[(?P<text>[^\]]+)\]\((?!https?://|#)(?P<target>[^)]+)\)")


class IndexReadme(MetadataHookInterface):
    """Links of README.md become absolute, below `files-url` in the settings; without it, only their text stays.

    It is also the project's URL; without it, there is none.
    """

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        files_url = self.config.get("files-url", "")
        metadata["readme"] = {"content-type": "text/markdown", "text": on_index(text, files_url)}
        metadata["urls"] = {"Source": files_url} if files_url else {}


def on_index(readme: str, files_url: str) -> str:
    def link(found: re.Match[str]) -> str:
        return f"[{found['text']}]({files_url.rstrip('/')}/{found['target']})" if files_url else found["text"]

    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _RELATIVE.sub(link, part) for part in parts)
