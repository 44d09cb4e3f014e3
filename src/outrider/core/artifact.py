"""An artifact: something that an episode leaves besides what was said in it, such as a recording of its screen."""

import msgspec
from msgspec import Struct

from outrider.core.decoding import convert
from outrider.core.event import Event, EventKind


class Artifact(Struct, frozen=True, kw_only=True):
    """A file to keep with a trajectory."""

    name: str
    media_type: str
    data: bytes


class _Record(Struct, frozen=True, kw_only=True):
    media_type: str
    size: int
    data: bytes


def to_data(artifact: Artifact) -> dict[str, object]:
    """What an event of kind `artifact` holds; the event's name is the artifact's."""
    return {"media_type": artifact.media_type, "size": len(artifact.data), "data": artifact.data}


def artifact_of(event: Event) -> Artifact | None:
    """The artifact in an event; None for other events, and for artifacts in a form of their author's own."""
    if event.kind is not EventKind.ARTIFACT:
        return None
    try:
        record = convert(event.data, _Record)
    except msgspec.ValidationError:
        return None
    return Artifact(name=event.name, media_type=record.media_type, data=record.data)
