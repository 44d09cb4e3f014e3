"""Artifacts: large events, kept as they are."""

from outrider.core.artifact import Artifact, artifact_of, to_data
from outrider.core.event import Event, EventKind
from outrider.store import Store
from store_moves import AT, enqueue_and_claim, finish, log


async def test_a_recording_of_many_megabytes_is_kept_as_it_is(store: Store):
    artifact = Artifact(name="recording.png", media_type="image/apng", data=bytes(range(256)) * (9 << 12))
    event = Event(kind=EventKind.ARTIFACT, at=AT, name=artifact.name, data=to_data(artifact))
    claimed = await enqueue_and_claim(store)
    await store.append_events(claimed.rollout_id, claimed.attempt.attempt_id, [log("first")])
    await finish(store, claimed, events=[event, log("last")])
    (kept,) = await store.query_events(claimed.rollout_id, kind=EventKind.ARTIFACT)
    assert artifact_of(kept) == artifact
    assert kept.data["size"] == len(artifact.data) == 9 << 20
    assert [event.name for event in await store.query_events(claimed.rollout_id)] == ["first", artifact.name, "last"]
