"""Recordings of model calls: made while a run goes on, replayed without the model."""

from outrider.policy.recording.record import RecordingPolicy, open_recording
from outrider.policy.recording.replay import ReplayPolicy, open_replay

__all__ = ["RecordingPolicy", "ReplayPolicy", "open_recording", "open_replay"]
