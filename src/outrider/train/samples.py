"""Samples of a trajectory: what happened in an attempt as flat token sequences, token for token.

Never re-tokenised: ids are those that the engine read and wrote. A turn whose ids are not known, or do not fit
together, is kept as text, and counted as such.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider.core.errors import InvalidInput
from outrider.core.event import Event, EventKind, RecordedEvent
from outrider.core.trajectory import Trajectory
from outrider.core.turn import CallOutcome, Turn, TurnRecord, outcomes_of, step_of, turns_of
from outrider.train.arrays import PACKED_INT, np, unpacked
from outrider.train.sample import Sample, SampleCall, SampledTrajectory, SampleReport, TextTurn, no_tokens
from outrider.train.sequence import TokenTurn, sequences_of

RESULT = "result"
"""The name of the event in which an attempt says how it ended."""

ENDED_BY_LIMIT = frozenset({"truncated", "max_turns", "context"})
"""The stop reasons that do not come from the task itself."""

CUT = "length"
"""The finish reason of a completion that reached a limit of tokens."""

MAX_VERSION = int(np.iinfo(np.int32).max)


def samples_of(source: Trajectory | Sequence[Event]) -> tuple[Sample, ...]:
    """The samples of a finished attempt, agent by agent: sequences in the order of their first turns, then text."""
    return sampled(source).samples


def sampled(source: Trajectory | Sequence[Event], *, reward: float | None = None) -> SampledTrajectory:
    """The trajectory with its samples and a report on them. `reward` stands in for that of the rollout.

    The turns of a team are taken in the order in which its program made them, whenever they ended, so its samples are
    the same whatever the schedule. Calls that the program went on without are left out, and counted.
    """
    events = source.events if isinstance(source, Trajectory) else source
    outcomes = outcomes_of(events)
    turns: list[Turn] = []
    reports: defaultdict[str, SampleReport] = defaultdict(SampleReport)
    for turn in sorted(turns_of(events), key=_place):
        if _is_used(turn, outcomes):
            turns.append(turn)
        else:
            reports[_policy(turn)] += SampleReport(n_unused=1, n_unused_tokens=turn.record.completion_tokens)
    told = _Told(_bare(source, reward), turns, outcomes)
    samples: list[Sample] = []
    for agent, policy in dict.fromkeys((turn.agent, _policy(turn)) for turn in turns):
        own = [index for index, turn in enumerate(turns) if (turn.agent, _policy(turn)) == (agent, policy)]
        made, report = told.samples(own)
        samples += made
        reports[policy] += report
    versions = [turn.record.policy_version for turn in turns]
    return replace(
        told.bare,
        first_version=versions[0] if versions else None,
        last_version=max(versions, default=None),
        samples=tuple(samples),
        reports=dict(reports),
    )


def _place(turn: Turn) -> tuple[bool, tuple[int, ...]]:
    """Where the turn stands among those of its trajectory; turns of no team stay as they are."""
    call = turn.record.call
    return (call is None, () if call is None else call.order)


def _is_used(turn: Turn, outcomes: Mapping[str, CallOutcome]) -> bool:
    call = turn.record.call
    return call is None or (call.id in outcomes and outcomes[call.id].used)


def _policy(turn: Turn) -> str:
    return "" if turn.record.call is None else turn.record.call.policy


@dataclass(frozen=True, slots=True)
class _Told:
    """What was said in a trajectory: the turns that count, in their order, and what became of those of a team."""

    bare: SampledTrajectory
    turns: Sequence[Turn]
    outcomes: Mapping[str, CallOutcome]

    def samples(self, own: Sequence[int]) -> tuple[list[Sample], SampleReport]:
        """The samples of these turns, all of one agent."""
        tokens = [_token_turn(index, self.turns[index].record) for index in own]
        sequences = sequences_of(turn for turn in tokens if turn is not None)
        samples = [self._sample(sequence.indices, **sequence.arrays()) for sequence in sequences]
        for indices in self._texts(index for index, turn in zip(own, tokens, strict=True) if turn is None):
            text = tuple(_text_turn(index, self.turns[index]) for index in indices)
            samples.append(self._sample(indices, **no_tokens(), text=text))
        n_forks = sum(sequence.is_fork for sequence in sequences)
        return samples, _report(samples, [self.turns[index] for index in own], tokens, n_forks)

    def _texts(self, indices: Iterable[int]) -> Iterator[list[int]]:
        """Turns without ids that are one sample: each call of a team by itself, all others together."""
        together = []
        for index in indices:
            if self.turns[index].record.call is None:
                together.append(index)
            else:
                yield [index]
        if together:
            yield together

    def _sample(self, indices: Sequence[int], **content: Any) -> Sample:
        last, bare = self.turns[indices[-1]], self.bare
        return Sample(
            agent=last.agent,
            rollout_id=bare.rollout_id,
            group_id=bare.group_id,
            turns=tuple(indices),
            calls=tuple(self._calls(indices)),
            reward=bare.reward,
            stop_reason=bare.stop_reason,
            truncated=bare.truncated or last.record.finish_reason == CUT,
            **content,
        )

    def _calls(self, indices: Sequence[int]) -> Iterator[SampleCall]:
        for index in indices:
            if (call := self.turns[index].record.call) is not None:
                yield SampleCall(
                    id=call.id,
                    round=call.round,
                    verdict=self.outcomes[call.id].verdict,
                    route=call.route,
                    reads=call.reads,
                    dropped=call.dropped,
                    policy=call.policy,
                )


def _bare(source: Trajectory | Sequence[Event], reward: float | None) -> SampledTrajectory:
    """What is known of the trajectory as a whole."""
    if not isinstance(source, Trajectory):
        recorded = next((event.rollout_id for event in source if isinstance(event, RecordedEvent)), "")
        return SampledTrajectory(rollout_id=recorded, reward=reward, **_ending(source))
    rollout = source.rollout
    return SampledTrajectory(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        tag=rollout.tag,
        seed=rollout.seed,
        reward=rollout.reward if reward is None else reward,
        **_ending(source.events),
    )


def _ending(events: Iterable[Event]) -> dict[str, Any]:
    stop_reason, last_step = "", None
    for event in events:
        if event.kind is EventKind.STEP:
            last_step = event
        elif event.kind is EventKind.REWARD and event.name == RESULT:
            stop_reason = str(event.data.get("stop_reason") or stop_reason)
    step = None if last_step is None else step_of(last_step)
    cut_off = step is not None and step.truncated and not step.terminated
    return {"stop_reason": stop_reason, "truncated": cut_off or stop_reason in ENDED_BY_LIMIT}


def _token_turn(index: int, record: TurnRecord) -> TokenTurn | None:
    """The turn in token ids; None if they are not all there or cannot be right."""
    if not 0 <= record.policy_version <= MAX_VERSION:
        raise InvalidInput(
            f"turn {index} is by policy version {record.policy_version}; they go from 0 to {MAX_VERSION}"
        )
    given = record.tokens or {}
    prompt, completion = given.get("prompt_ids", b""), given.get("completion_ids", b"")
    logprobs = given.get("logprobs", b"")
    if not (_are_ids(prompt) and _are_ids(completion)) or len(logprobs) not in (0, len(completion)):
        return None
    return TokenTurn(
        index=index, prompt=prompt, completion=completion, logprobs=logprobs, version=record.policy_version
    )


def _are_ids(packed: bytes) -> bool:
    if not packed or len(packed) % PACKED_INT.itemsize:
        return False
    return bool(unpacked(packed, PACKED_INT).min() >= 0)


def _text_turn(index: int, turn: Turn) -> TextTurn:
    record = turn.record
    return TextTurn(
        index=index,
        request=turn.request,
        reply=record.reply,
        n_tokens=record.completion_tokens,
        version=record.policy_version,
    )


def _report(
    samples: Sequence[Sample], turns: Sequence[Turn], tokens: Sequence[TokenTurn | None], n_forks: int
) -> SampleReport:
    sequences = [sample for sample in samples if not sample.is_text]
    n_trained = sum(int(sample.loss_mask.sum()) for sample in sequences)
    return SampleReport(
        n_turns=len(turns),
        n_text_turns=sum(turn is None for turn in tokens),
        n_sequences=len(sequences),
        n_forks=n_forks,
        n_drifted=sum(1 for _ in _drifted(turns, tokens)),
        n_trained=n_trained,
        n_masked=sum(sample.n_tokens for sample in sequences) - n_trained,
        n_text=sum(text.n_tokens for sample in samples for text in sample.text),
        n_without_logprobs=sum(int(np.isnan(sample.logprobs).sum()) for sample in sequences),
    )


def _drifted(turns: Sequence[Turn], tokens: Sequence[TokenTurn | None]) -> Iterator[int]:
    """The turns of an agent whose messages go on from an earlier one while their ids do not."""
    for index, (turn, own) in enumerate(zip(turns, tokens, strict=True)):
        if own is None:
            continue
        for before in reversed(range(index)):
            earlier = tokens[before]
            if earlier is not None and _goes_on(turns[before], turn):
                if not earlier.is_continued_by(own.prompt):
                    yield index
                break


def _goes_on(earlier: Turn, turn: Turn) -> bool:
    n_said = len(earlier.request)
    return (
        len(turn.request) > n_said
        and turn.request[n_said] == earlier.record.reply
        and turn.request[:n_said] == earlier.request
    )
