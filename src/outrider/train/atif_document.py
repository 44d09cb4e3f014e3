"""The fields of an ATIF document, version 1.8, and the rules between them.

ATIF is the Agent Trajectory Interchange Format of Harbor (its RFC 0001); the field list is that of Harbor 0.25.0, which
writes ATIF-v1.8 and reads every version from 1.0. A field that is not in the list is refused, as Harbor does.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from outrider.core.errors import InvalidInput

VERSION = "ATIF-v1.8"

Count = Annotated[int, Meta(ge=0)]
Extra = dict[str, Any] | None
ImageType = Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
IMAGE_ENDINGS: dict[str, str] = {"image/jpeg": "jpg", "image/png": "png", "image/gif": "gif", "image/webp": "webp"}


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all parts of a document have in common: absent means null."""


class Source(_Part, frozen=True, kw_only=True):
    """Where a picture or a sound is: a path beside the document, or a URL."""

    media_type: str
    path: str
    duration_sec: float | None = None


class ContentPart(_Part, frozen=True, kw_only=True):
    """A piece of a message that is not text alone."""

    type: Literal["text", "image", "audio"]
    text: str | None = None
    source: Source | None = None


Content = str | tuple[ContentPart, ...]


class ToolCall(_Part, frozen=True, kw_only=True):
    """An action of the agent."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: Extra = None


class SubagentRef(_Part, frozen=True, kw_only=True):
    """Points at another trajectory."""

    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None
    extra: Extra = None


class Result(_Part, frozen=True, kw_only=True):
    """What came back, of the call named by `source_call_id` if there was one."""

    source_call_id: str | None = None
    content: Content | None = None
    subagent_trajectory_ref: tuple[SubagentRef, ...] | None = None
    extra: Extra = None


class Observation(_Part, frozen=True, kw_only=True):
    """What came back after a step."""

    results: tuple[Result, ...]


class Metrics(_Part, frozen=True, kw_only=True):
    """Tokens of a model call."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    extra: Extra = None


class Step(_Part, frozen=True, kw_only=True):
    """Something said or done. `step_id` counts from 1; `llm_call_count` is 0 if no model was asked."""

    step_id: Annotated[int, Meta(ge=1)]
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: Content
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: Count | None = None
    extra: Extra = None


class Agent(_Part, frozen=True, kw_only=True):
    """Who acts."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: tuple[dict[str, Any], ...] | None = None
    extra: Extra = None


class FinalMetrics(_Part, frozen=True, kw_only=True):
    """Sums over a trajectory."""

    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: Count | None = None
    extra: Extra = None


class Document(_Part, frozen=True, kw_only=True):
    """A trajectory. `session_id` names the run, `trajectory_id` this document."""

    schema_version: Annotated[str, Meta(pattern=r"^ATIF-v1\.[0-8]$")]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: Agent
    steps: Annotated[tuple[Step, ...], Meta(min_length=1)]
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: Extra = None
    subagent_trajectories: "tuple[Document, ...] | None" = None


_AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
_MODEL_ONLY = ("metrics", "reasoning_content")


def check(document: Document) -> None:
    """Refuse what the fields alone do not forbid."""
    for problem in _problems(document):
        raise InvalidInput(f"not a valid {document.schema_version} document: {problem}")


def _problems(document: Document) -> Iterator[str]:
    for number, step in enumerate(document.steps, 1):
        if step.step_id != number:
            yield f"step {number} has the step_id {step.step_id}"
        yield from (f"step {number}: {problem}" for problem in _step_problems(step))
    embedded = document.subagent_trajectories or ()
    ids = [one.trajectory_id for one in embedded]
    if None in ids or len(set(ids)) < len(ids):
        yield "the trajectory_ids of subagent_trajectories are not all there and different"
    for one in embedded:
        yield from _problems(one)


def _step_problems(step: Step) -> Iterator[str]:
    forbidden = _AGENT_ONLY if step.source != "agent" else _MODEL_ONLY if step.llm_call_count == 0 else ()
    for name in forbidden:
        if getattr(step, name) is not None:
            yield f"a step of {step.source} that no model wrote has no {name}"
    calls = {call.tool_call_id for call in step.tool_calls or ()}
    for result in step.observation.results if step.observation else ():
        if result.source_call_id is not None and result.source_call_id not in calls:
            yield f"a result names the call {result.source_call_id!r}, which is not one of the step's"
        yield from _content_problems(result.content)
    yield from _content_problems(step.message)


def _content_problems(content: Content | None) -> Iterator[str]:
    for part in content if isinstance(content, tuple) else ():
        if (part.text is None) == (part.type == "text") or (part.source is None) != (part.type == "text"):
            yield f"a content part of type {part.type} has the wrong fields"
        elif part.type == "image" and part.source is not None and part.source.media_type not in IMAGE_ENDINGS:
            yield f"there are no pictures of type {part.source.media_type!r}"
