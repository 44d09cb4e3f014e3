"""The page of a run: one file with everything in it, to open after a run and to send to others.

Invariants:
- It loads nothing but its own further pages: styles, script and pictures are in the file, and its security policy
  forbids all else, so that a script that somebody smuggled into a conversation would not run even if it were not
  escaped.
- Conversations are kept as text and built when they are opened: a page of a thousand opens at once.
- Its size is bounded. Conversations that do not fit go on in further pages beside it, `page.part2.html` and so on, each
  of which holds all it needs. A conversation that fits into none has a page to itself, with its middle left out. A
  search on the first page asks the others too, in a hidden frame, one after another; they answer no page of another
  origin. Pictures have one budget for all pages together: what is left out is said.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from outrider.core.bounds import Bytes, Count, check_bounds
from outrider.core.files import write_private_whole
from outrider.core.rollout import Rollout
from outrider.core.status import RolloutStatus
from outrider.evaluate import assets
from outrider.evaluate.conversation import Conversation, read_conversation
from outrider.evaluate.markup import Omissions, conversation_html, readable
from outrider.evaluate.plot import count_text, plot, seconds_text
from outrider.evaluate.report import estimate_text, missing_text
from outrider.evaluate.results import ResultLine
from outrider.evaluate.retries import replaced
from outrider.evaluate.runs import run_rollouts
from outrider.evaluate.summary import SUCCESS_AT, Scoreboard, Summary
from outrider.store import Store

PAGE_FILE = "page.html"
MAX_BYTES = 24 << 20
MAX_ROLLOUTS = 5_000

_CUT = 200
_N_LINKS = 20
_KINDS = (("good", "passed"), ("part", "partly"), ("bad", "not passed"), ("error", "failed"), ("none", "no score"))
_ORDERS = (("order", "as enqueued"), ("reward", "by reward"), ("seconds", "by time"), ("tokens", "by tokens"))


class PageLimits(Struct, frozen=True, kw_only=True):
    """How much one page may hold."""

    max_bytes: Bytes = MAX_BYTES
    max_rollouts: Count = MAX_ROLLOUTS

    def __post_init__(self) -> None:
        check_bounds(self)


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
    prices: tuple[float, float] = (0.0, 0.0),
) -> str:
    """Write the page of a run, of one rollout, or of all that a store holds; says what was left out, if anything."""
    board = Scoreboard(success_at=success_at, prices=prices)
    gone = await _replaced(store, run) if only is None else frozenset[str]()
    omissions = Omissions()
    limits = limits or PageLimits()
    pages = _Pages(path, title, limits)
    cut: list[ResultLine] = []
    async for rollout in _alone(only) if only is not None else run_rollouts(store, run):
        conversation = await read_conversation(store, rollout)
        line = conversation.result
        n_cut = omissions.n_conversations
        body = conversation_html(conversation, omissions, room=pages.picture_room, max_bytes=limits.max_bytes)
        if omissions.n_conversations > n_cut:
            cut.append(line)
        is_replaced = rollout.rollout_id in gone
        row = row_html(conversation, body, "none" if is_replaced else outcome(line, success_at), is_replaced)
        await pages.add(line.full_name, row)
        if is_replaced:
            board.add_replaced(line)
        elif line.status.is_final:
            board.add(line)
        elif rollout.n_attempts:
            board.add_open(line)
    left_out = omissions.sentence()
    head = _head(title, facts or {}, board.summary(), left_out=left_out, cut=cut, file_of=pages.file_of)
    await pages.finish(head)
    return " ".join(filter(None, (left_out, pages.sentence)))


class _Pages:
    """The page and those that it goes on in. The first is written last, for it has the summary of all."""

    def __init__(self, path: Path, title: str, limits: PageLimits) -> None:
        self._path = path
        self._title = title
        self._limits = limits
        self._first: list[str] = []
        self._rows: list[str] = []
        self._n_bytes = self._n_bytes_of_all = 0
        self._n_pages = 1
        self._page_of: dict[str, int] = {}

    @property
    def picture_room(self) -> int:
        """What the pictures of all pages may still take up."""
        return max(self._limits.max_bytes - self._n_bytes_of_all, 0)

    @property
    def sentence(self) -> str:
        n_more = self._n_pages - 1
        return f"It goes on in {n_more:,} more page{'s' * (n_more > 1)} beside it." if n_more else ""

    def file_of(self, name: str) -> str:
        """The page that a rollout is in, as a link from the first: empty for that one itself."""
        number = self._page_of.get(name, 1)
        return "" if number == 1 else self._file(number).name

    async def add(self, name: str, row: str) -> None:
        n_bytes = len(row.encode())
        limits = self._limits
        if self._rows and (self._n_bytes + n_bytes > limits.max_bytes or len(self._rows) >= limits.max_rollouts):
            await self._turn()
        self._rows.append(row)
        self._n_bytes += n_bytes
        self._n_bytes_of_all += n_bytes
        self._page_of[name] = self._n_pages

    async def finish(self, head: str) -> None:
        if self._n_pages == 1:
            self._first = self._rows
        else:
            await self._write(self._n_pages, f"<h1>{escape(self._title)}</h1>", self._rows, is_last=True)
        await self._write(1, head, self._first, is_last=self._n_pages == 1)
        number = self._n_pages + 1
        while (old := self._file(number)).exists():  # of a longer run that was written here before
            old.unlink()
            number += 1

    async def _turn(self) -> None:
        if self._n_pages == 1:
            self._first = self._rows
        else:
            await self._write(self._n_pages, f"<h1>{escape(self._title)}</h1>", self._rows, is_last=False)
        self._rows, self._n_bytes = [], 0
        self._n_pages += 1

    async def _write(self, number: int, head: str, rows: list[str], *, is_last: bool) -> None:
        has_parts = number == 1 and not is_last
        text = "".join(_document(self._title, head + self._links(number, is_last=is_last), rows, has_parts=has_parts))
        await asyncio.to_thread(write_private_whole, self._file(number), text)

    def _links(self, number: int, *, is_last: bool) -> str:
        """To the other pages: from the first to all, from each of the others to its neighbours and the first."""
        if number == 1:
            others, kind, text = [*range(2, self._n_pages + 1)], "data-part", "A search here looks in all pages"
        else:
            others, kind, text = [1, number - 1, number + 1], "data-page", "The first page searches in all"
        wanted = [n for n in dict.fromkeys(others) if n != number and (number == 1 or n < number or not is_last)]
        if not wanted:
            return ""
        links = " ".join(f'<a {kind} href="{escape(quote(self._file(n).name))}">page {n:,}</a>' for n in wanted)
        return f'<p class="note">Page {number:,} of a run in several. {text}: {links}</p>'

    def _file(self, number: int) -> Path:
        path = self._path
        return path if number == 1 else path.with_name(f"{path.stem}.part{number}{path.suffix}")


async def _replaced(store: Store, run: str | None) -> frozenset[str]:
    """The samples in whose place a retry is counted."""
    return replaced([one.rollout_id async for one in run_rollouts(store, run) if one.status.is_final])


async def _alone(rollout: Rollout) -> AsyncIterator[Rollout]:
    yield rollout


def row_html(conversation: Conversation, body: str, kind: str, is_replaced: bool) -> str:
    """One rollout of the index, its conversation folded up inside."""
    line = conversation.result
    numbers = {"reward": line.reward, "seconds": line.seconds, "tokens": line.tokens}
    data = "".join(f' data-{name}="{value}"' for name, value in numbers.items() if value is not None)
    cells = "".join(_cells(conversation, "retried: " if is_replaced else ""))
    anchor = escape(line.full_name)
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


def _cells(conversation: Conversation, note: str) -> Iterator[str]:
    line = conversation.result
    answer = "" if line.output is None else line.output if isinstance(line.output, str) else readable(line.output)
    if line.failure is not None:
        answer = f"{line.failure.boundary}: {line.failure.message}"
    elif not line.status.is_final:
        answer = line.status.value
    yield f'<span class="dot" title="{escape(line.status)}"></span><span class="cut">{escape(line.name)}</span>'
    yield f'<span class="cut soft">{_one_line(conversation.question)}</span>'
    yield f'<span class="cut wide">{note}{_one_line(answer)}</span>'
    yield _number("" if line.reward is None else f"{line.reward:.3g}")
    yield _number(str(line.n_turns), wide=True)
    yield _number(count_text(line.tokens), wide=True)
    yield _number("" if line.seconds is None else seconds_text(line.seconds))


def _number(text: str, *, wide: bool = False) -> str:
    return f'<span class="number{" wide" if wide else ""}">{escape(text)}</span>'


def _one_line(text: str) -> str:
    line = " ".join(text[: _CUT * 2].split())
    return escape(line[:_CUT].encode(errors="replace").decode())


def _head(
    title: str,
    facts: Mapping[str, Any],
    summary: Summary,
    *,
    left_out: str,
    cut: Sequence[ResultLine],
    file_of: Callable[[str], str],
) -> str:
    named = "".join(f"<span>{escape(name)} <b>{escape(str(value))}</b></span>" for name, value in facts.items())
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in _tiles(summary)
    )
    links = ", ".join(_link(line.full_name, line.name, file_of) for line in cut[:_N_LINKS])
    shown = f" Cut in the middle: {links}{', …' if len(cut) > _N_LINKS else '.'}" if links else ""
    in_full = " <code>outrider view</code> shows each in full."
    note = f'<p class="note">{escape(left_out)}{shown}{in_full}</p>' if left_out else ""
    return (
        f'<h1>{escape(title)}</h1><p class="facts">{named}</p><div class="tiles">{tiles}</div>'
        f'{plot(summary)}<p class="soft">{escape(missing_text(summary.total))}</p>{_causes(summary, file_of)}{note}'
    )


def _causes(summary: Summary, file_of: Callable[[str], str]) -> str:
    """Why rollouts failed, each cause with a link to one of them."""
    items = []
    for cause in summary.causes:
        link = _link(cause.example, cause.example.partition("/")[2] or cause.example, file_of)
        what = f"<b>{cause.n:,}</b> {escape(cause.boundary)}: {escape(cause.message)}"
        items.append(f"<li>{what} {link}</li>")
    return f'<ul class="causes">{"".join(items)}</ul>' if items else ""


def _link(full_name: str, name: str, file_of: Callable[[str], str]) -> str:
    """To a rollout in whichever page it is."""
    address = f"{file_of(full_name)}#{quote(full_name, safe='')}"
    return f'<a href="{escape(address)}">{escape(name)}</a>'


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
    yield f"by all attempts, {seconds_text(total.model_seconds)} in calls", seconds_text(total.attempt_seconds)
    if summary.money is not None:
        yield "money", f"{summary.money:.4g}"
    if summary.n_replaced:
        yield "samples that retries replace", f"{summary.n_replaced:,}"
    if (n_open := summary.n_begun - total.n) > 0:
        yield "begun and not done", f"{n_open:,}"


def _interval(text: str) -> str:
    return text.partition(" ")[2]


def _document(title: str, head: str, rows: list[str], *, has_parts: bool) -> Iterator[str]:
    style = files(assets).joinpath("page.css").read_text(encoding="utf-8")
    script = files(assets).joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    if has_parts:
        policy += "; frame-src 'self' file:"
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
    yield '</main>\n<div id="elsewhere"></div>\n'
    yield "<noscript><p class=note>To open conversations, allow this page its script.</p></noscript>\n"
    yield f"<footer>Made by Outrider.</footer>\n<script>{script}</script></body></html>\n"
