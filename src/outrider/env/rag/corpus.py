"""A corpus: documents from a JSONL file or a folder of texts, cut into passages."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput

PASSAGE_WORDS = 200
"""How long a passage may be, if nobody says."""

_TEXT_ENDINGS = frozenset({".md", ".markdown", ".txt"})
_JSONL_ENDINGS = frozenset({".jsonl", ".ndjson"})
_ID_FIELDS = ("id", "_id", "doc_id", "docid", "document_id", "pid")
_TITLE_FIELDS = ("title", "name", "heading")
_TEXT_FIELDS = ("text", "contents", "content", "body", "passage", "document")
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*?)[ \t#]*$", re.MULTILINE)
_PARAGRAPHS = re.compile(r"\n\s*\n")
_SENTENCES = re.compile(r"(?<=[.!?])\s+")


class File(NamedTuple):
    """A file of a corpus, by its name in the corpus."""

    name: str
    content: bytes


class Document(Struct, frozen=True, kw_only=True):
    """One text of a corpus."""

    id: str
    title: str
    text: str


class Passage(Struct, frozen=True, kw_only=True):
    """A piece of a document, as a search finds it. The id is the document's, from the second on with a number."""

    id: str
    title: str
    text: str


def read_files(corpus: Path) -> Iterator[File]:
    """The files of a corpus, hidden ones left out, sorted by name. Raises `InvalidInput` if there is no such corpus."""
    if corpus.is_file():
        yield File(corpus.name, _bytes_of(corpus))
        return
    if not corpus.is_dir():
        raise InvalidInput(f"there is no corpus at {corpus}; give a JSONL file or a folder with .md or .txt files")
    found = {file.relative_to(corpus).as_posix(): file for file in corpus.rglob("*") if _is_text(file, corpus)}
    for name in sorted(found):
        yield File(name, _bytes_of(found[name]))


def digest_of(files: Iterable[File]) -> str:
    """A digest of all that a corpus says: it changes with every change of a text, a name or a set of files."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        content = hashlib.blake2b(file.content, digest_size=16).hexdigest()
        digest.update(f"{file.name}\0{content}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def read_documents(files: Iterable[File]) -> list[Document]:
    """The documents in files, in a fixed order. Raises `InvalidInput` that points at what cannot be used."""
    documents: list[Document] = []
    seen: dict[str, str] = {}
    for place, document in (found for file in files for found in _documents(file)):
        if document.id in seen:
            raise InvalidInput(f"{place}: the id {document.id!r} is also that of {seen[document.id]}; ids must differ")
        seen[document.id] = place
        if document.text.strip():
            documents.append(document)
    if not documents:
        raise InvalidInput("the corpus has no text in it; give a JSONL file or a folder with .md or .txt files")
    return documents


def passages_of(document: Document, passage_words: int) -> Iterator[Passage]:
    """The document in passages of at most `passage_words` words, cut between paragraphs or else sentences or words."""
    for number, text in enumerate(_packed(_pieces(document.text, passage_words), passage_words), start=1):
        id = document.id if number == 1 else f"{document.id}#{number}"
        yield Passage(id=id, title=document.title, text=text)


def _packed(pieces: Iterable[str], most: int) -> Iterator[str]:
    """Pieces put together again for as long as they fit."""
    taken: list[str] = []
    n_words = 0
    for piece in pieces:
        n_more = len(piece.split())
        if taken and n_words + n_more > most:
            yield "\n\n".join(taken)
            taken, n_words = [], 0
        taken.append(piece)
        n_words += n_more
    if taken:
        yield "\n\n".join(taken)


def _pieces(text: str, most: int) -> Iterator[str]:
    for paragraph in _PARAGRAPHS.split(text.strip()):
        if len(paragraph.split()) <= most:
            yield paragraph.strip()
        else:
            yield from _packed_sentences(paragraph, most)


def _packed_sentences(paragraph: str, most: int) -> Iterator[str]:
    taken: list[str] = []
    for sentence in _SENTENCES.split(paragraph):
        words = sentence.split()
        if taken and len(taken) + len(words) > most:
            yield " ".join(taken)
            taken = []
        taken += words
        while len(taken) > most:
            yield " ".join(taken[:most])
            taken = taken[most:]
    if taken:
        yield " ".join(taken)


def _documents(file: File) -> Iterator[tuple[str, Document]]:
    try:
        content = file.content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{file.name} in the corpus is not UTF-8 (byte {exc.start}); convert it") from exc
    path = PurePosixPath(file.name)
    if path.suffix.lower() in _TEXT_ENDINGS:
        heading = _HEADING.search(content)
        title = heading[1] if heading else path.stem.replace("-", " ").replace("_", " ")
        yield file.name, Document(id=file.name, title=title, text=content)
    else:
        yield from _lines(content, file.name)


def _lines(content: str, name: str) -> Iterator[tuple[str, Document]]:
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            place = f"{name} line {number}"
            yield place, _document(line, place, number)


def _document(line: str, place: str, number: int) -> Document:
    try:
        fields = from_json(line)
    except msgspec.DecodeError as exc:
        raise InvalidInput(f"{place} is not JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise InvalidInput(f"{place} is not a JSON object with `id`, `title` and `text`")
    text = _field(fields, _TEXT_FIELDS)
    if not isinstance(text, str):
        raise InvalidInput(f"{place} has no text; give it in the field `text`")
    id, title = _field(fields, _ID_FIELDS), _field(fields, _TITLE_FIELDS)
    return Document(id=str(number if id is None else id), title="" if title is None else str(title), text=text)


def _field(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _is_text(file: Path, corpus: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in file.relative_to(corpus).parts)
    return not is_hidden and file.suffix.lower() in _TEXT_ENDINGS | _JSONL_ENDINGS and file.is_file()


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise InvalidInput(f"the corpus file {file} cannot be read: {exc.strerror}") from exc
