"""The page of a run: one file with everything in it, to open after a run and to send to others.

Invariants:
- It loads nothing: styles, script and pictures are in the file, and its security policy forbids all else, so that a
  script that somebody smuggled into a conversation would not run even if it were not escaped.
- Conversations are kept as text and built when they are opened: a page of a thousand opens at once.
- Its size is bounded. What does not fit is left out from the end, and the page says so.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct

from outrider.core.files import write_private_whole
from outrider.core.rollout import Rollout
from outrider.core.status import RolloutStatus
from outrider.evaluate import assets
from outrider.evaluate.conversation import Conversation, read_conversation
from outrider.evaluate.markup import Omissions, conversation_html, readable
from outrider.evaluate.plot import count_text, plot, seconds_text
from outrider.evaluate.report import estimate_text, missing_text
from outrider.evaluate.results import ResultLine, read_result
from outrider.evaluate.runs import run_rollouts
from outrider.evaluate.summary import SUCCESS_AT, Scoreboard, Summary
from outrider.store import Store

PAGE_FILE = "page.html"
MAX_BYTES = 24 << 20
MAX_ROLLOUTS = 5_000

_CUT = 200
_KINDS = (("good", "passed"), ("part", "partly"), ("bad", "not passed"), ("error", "failed"), ("none", "no score"))
_ORDERS = (("order", "as enqueued"), ("reward", "by reward"), ("seconds", "by time"), ("tokens", "by tokens"))


class PageLimits(Struct, frozen=True, kw_only=True):
    """How much a page may hold."""

    max_bytes: int = MAX_BYTES
    max_rollouts: int = MAX_ROLLOUTS


async def write_page(
    path: Path,
    store: Store,
    *,
    title: str,
    run: str | None = None,
    only: Rollout | None = None,
    facts: Mapping[str, Any] | None = None,
    success_at: float = SUCCESS_AT,
    limits: PageLimits | None = None,
) -> str:
    """Write the page of a run, of one rollout, or of all that a store holds; says what was left out, if anything."""
    limits = limits or PageLimits()
    board = Scoreboard(success_at=success_at)
    omissions = Omissions()
    rows: list[str] = []
    size = 0
    async for rollout in _alone(only) if only is not None else run_rollouts(store, run):
        if len(rows) >= limits.max_rollouts:
            omissions.n_rollouts += 1
            line = await read_result(store, rollout)
        else:
            conversation = await read_conversation(store, rollout)
            line = conversation.result
            row = row_html(rollout, conversation, omissions, success_at, room=limits.max_bytes - size)
            size += len(row.encode())
            rows.append(row)
        if line.status.is_final:
            board.add(line)
    head = _head(title, facts or {}, board.summary(), omissions.sentence())
    await asyncio.to_thread(write_private_whole, path, "".join(_document(title, head, rows)))
    return omissions.sentence()


async def _alone(rollout: Rollout) -> AsyncIterator[Rollout]:
    yield rollout


def row_html(
    rollout: Rollout, conversation: Conversation, omissions: Omissions, success_at: float, *, room: int
) -> str:
    """One rollout of the index, its conversation folded up inside, if that fits into so many bytes."""
    line = conversation.result
    body = conversation_html(conversation, omissions, room=room)
    if len(body.encode()) > room:
        omissions.n_conversations += 1
        body = f'<p class="soft">Left out here; see <code>outrider view RUN {escape(line.rollout_id)}</code></p>'
    kind = outcome(line, success_at)
    numbers = {"reward": line.reward, "seconds": line.seconds, "tokens": line.tokens}
    data = "".join(f' data-{name}="{value}"' for name, value in numbers.items() if value is not None)
    cells = "".join(_cells(rollout, conversation))
    anchor = escape(line.rollout_id)
    return (
        f'<details class="rollout {kind}" id="{anchor}"{data}><summary>{cells}</summary>'
        f'<script type="text/html">{body}</script></details>\n'
    )


def outcome(line: ResultLine, success_at: float) -> str:
    """How a rollout came out, as the page's classes call it."""
    if line.status is RolloutStatus.FAILED:
        return "error"
    if line.reward is None:
        return "none"
    if line.reward >= success_at:
        return "good"
    return "part" if line.reward > 0 else "bad"


def _cells(rollout: Rollout, conversation: Conversation) -> Iterator[str]:
    line = conversation.result
    short = rollout.rollout_id.rpartition("/")[2]
    answer = "" if line.output is None else line.output if isinstance(line.output, str) else readable(line.output)
    if line.failure is not None:
        answer = f"{line.failure.boundary}: {line.failure.message}"
    elif not line.status.is_final:
        answer = line.status.value
    yield f'<span class="dot" title="{escape(line.status)}"></span><span class="cut">{escape(short)}</span>'
    yield f'<span class="cut soft">{_one_line(conversation.question)}</span>'
    yield f'<span class="cut wide">{_one_line(answer)}</span>'
    yield _number("" if line.reward is None else f"{line.reward:.3g}")
    yield _number(str(line.n_turns), wide=True)
    yield _number(count_text(line.tokens), wide=True)
    yield _number("" if line.seconds is None else seconds_text(line.seconds))


def _number(text: str, *, wide: bool = False) -> str:
    return f'<span class="number{" wide" if wide else ""}">{escape(text)}</span>'


def _one_line(text: str) -> str:
    line = " ".join(text[: _CUT * 2].split())
    return escape(line[:_CUT].encode(errors="replace").decode())


def _head(title: str, facts: Mapping[str, Any], summary: Summary, left_out: str) -> str:
    named = "".join(f"<span>{escape(name)} <b>{escape(str(value))}</b></span>" for name, value in facts.items())
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in _tiles(summary)
    )
    note = f'<p class="note">{escape(left_out)} <code>outrider view</code> shows each in full.</p>' if left_out else ""
    return (
        f'<h1>{escape(title)}</h1><p class="facts">{named}</p><div class="tiles">{tiles}</div>'
        f'{plot(summary)}<p class="soft">{escape(missing_text(summary.total))}</p>{note}'
    )


def _tiles(summary: Summary) -> Iterator[tuple[str, str]]:
    total = summary.total
    scored, everything = total.reward.scored, total.reward.all
    if scored is not None:
        yield f"mean reward of {scored.n:,} scored {_interval(estimate_text(scored))}", f"{scored.mean:.3f}"
    if everything is not None:
        yield f"mean reward of all {everything.n:,} {_interval(estimate_text(everything))}", f"{everything.mean:.3f}"
    for k, passed in list(total.pass_at.items())[1:][-1:]:
        if passed.scored is not None:
            yield f"pass@{k} of {passed.scored.n:,} tasks", f"{passed.scored.mean:.3f}"
    yield f"of {total.n:,} rollouts failed", f"{total.statuses.get('failed', 0):,}"
    if total.seconds is not None:
        yield f"median time, p95 {seconds_text(total.seconds.p95)}", seconds_text(total.seconds.p50)
    yield f"tokens in {total.model_calls:,} calls", count_text(total.prompt_tokens + total.completion_tokens)


def _interval(text: str) -> str:
    return text.partition(" ")[2]


def _document(title: str, head: str, rows: list[str]) -> Iterator[str]:
    style = files(assets).joinpath("page.css").read_text(encoding="utf-8")
    script = files(assets).joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    chips = "".join(f'<button data-show="{kind}" aria-pressed="false">{name}</button>' for kind, name in _KINDS)
    orders = "".join(f'<option value="{value}">{name}</option>' for value, name in _ORDERS)
    names = "<span></span><span>rollout</span><span>question</span><span class=wide>answer</span>"
    numbers = '<span class="number">reward</span><span class="number wide">turns</span>'
    rest = '<span class="number wide">tokens</span><span class="number">time</span>'
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style></head>\n<body>'
    yield f'{head}\n<div class="controls"><input id="search" type="search" placeholder="Search in all conversations">'
    yield f'{chips}<select id="order">{orders}</select><span id="count"></span></div>\n'
    yield f'<div class="heading">{names}{numbers}{rest}</div>\n<main id="rollouts">\n'
    yield from rows
    yield "</main>\n<noscript><p class=note>To open conversations, allow this page its script.</p></noscript>\n"
    yield f"<footer>Made by Outrider.</footer>\n<script>{script}</script></body></html>\n"
