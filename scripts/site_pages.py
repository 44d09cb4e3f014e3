"""Pages of the site that lie outside of docs/, such as README.md, and links between them and those inside."""

import os
import re
from itertools import chain, zip_longest
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = {
    "README.md": "index.md",
    **{
        name: name
        for name in (
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "bench/RESULTS.md",
            "examples/teams/README.md",
            "examples/train_frozen_lake/curves.svg",
        )
    },
}
"""Files of the checkout, with their places in the site."""

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"^(```\w*) file=(\S+)")
"""The begin of a block that is the content of a file: the site's Markdown knows no more than the language there."""

_LIST_IN_PARAGRAPH = re.compile(r"^(?!- |\s|\||#|\d+\. )(.+)\n(- |1\. )", re.MULTILINE)
"""The site's Markdown begins a list only after an empty line."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    for file in list(files):
        if file.src_uri.endswith(".md") and file.abs_src_path:
            file.content_string = with_links(root, Path(file.abs_src_path), file.src_uri)
    for name, place in PAGES.items():
        if name.endswith(".md"):
            files.append(File.generated(config, place, content=with_links(root, root / name, place)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(root / name)))
    return files


def with_links(root: Path, page: Path, place: str) -> str:
    """The page's text as the site needs it. A link to what the site does not have becomes the path of that file."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / found["target"]))
        if not target.exists():
            return found[0]  # the strict build reports it
        name = target.relative_to(root).as_posix()
        if name in PAGES:
            there = PAGES[name]
        elif name.startswith("docs/"):
            there = name.removeprefix("docs/")
        else:
            return f"{found['text']} (`{name}`)" if name not in found["text"] else found["text"]
        relative = os.path.relpath(there, Path(place).parent)
        return f"{found['image']}[{found['text']}]({relative}{found['anchor'] or ''})"

    parts = _FENCE.split(page.read_text(encoding="utf-8"))
    prose = (_LIST_IN_PARAGRAPH.sub(r"\1\n\n\2", _LINK.sub(link, part)) for part in parts[::2])
    code = [_NAMED.sub(r"`\2`:\n\n\1", part) for part in parts[1::2]]
    return "".join(chain.from_iterable(zip_longest(prose, code, fillvalue="")))
