"""Several endpoints that serve the same model: which one a conversation goes to, and which ones have failed.

A session stays with the endpoint that was least loaded when the session was first met, so that the server finds its
prompt in its cache. It moves when that endpoint fails, or leaves a call of the session without an answer. A failed
endpoint gets one call after a while; if that is answered, it is back.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

from yarl import URL

from outrider.core.clock import Clock
from outrider.policy.openai.gate import Gate
from outrider.policy.openai.limit import ConcurrencyLimit
from outrider.policy.openai.request import Dialect

MAX_SESSIONS = 65_536
FAULTS_TO_FAIL = 3
"""So many faults in a row fail an endpoint that can still be connected to."""

FIRST_REST_SECONDS = 5.0
LONGEST_REST_SECONDS = 120.0


class Endpoint:
    """One server: its address, how to speak to it, its permits, and how well it has done lately."""

    def __init__(self, base_url: URL, max_concurrency: int, clock: Clock, *, key_variable: str | None = None) -> None:
        self.base_url = base_url
        self.key_variable = key_variable
        """Where its key is read from; None: it gets none."""
        self.chat_url = self.url("chat/completions")
        self.dialect = Dialect()
        self.models: tuple[str, ...] | None = None
        self.gate = Gate(ConcurrencyLimit(max_concurrency), clock)
        self.n_sessions = 0
        self._clock = clock
        self._n_faults = 0
        self._n_rests = 0
        self._rests_until = float("-inf")
        self._silent_since = float("-inf")
        self._given_up_at = float("-inf")

    def url(self, path: str) -> URL:
        return self.base_url.joinpath(*path.split("/")).with_query(self.base_url.query)

    @property
    def has_failed(self) -> bool:
        return self._n_rests > 0

    @property
    def rests_until(self) -> float:
        return self._rests_until

    @property
    def is_usable(self) -> bool:
        """Whether to send a call: one at a time while it is not known to be back."""
        return not self.has_failed or (self._clock.monotonic() >= self._rests_until and self.gate.load == 0)

    @property
    def silent_seconds(self) -> float:
        """How long calls have been under way and none of them has got a piece of an answer."""
        return self._clock.monotonic() - self._silent_since if self.gate.n_in_flight else 0.0

    def sent(self) -> None:
        """A call is on its way; it holds a permit already."""
        if self.gate.n_in_flight == 1:
            self._silent_since = self._clock.monotonic()

    def heard(self) -> None:
        """A piece of an answer has come."""
        self._silent_since = self._clock.monotonic()

    def given_up(self, sent_at: float) -> None:
        """A call that was sent then got no answer for as long as its caller waited.

        It is a fault if the endpoint has been silent to all calls since. Those that are given up together are one.
        """
        if self._silent_since <= sent_at and self._given_up_at <= sent_at:
            self._given_up_at = self._clock.monotonic()
            self.failed(is_gone=False)

    def answered(self) -> None:
        """It works, whatever it answered."""
        self._n_faults = 0
        self._n_rests = 0

    def failed(self, *, is_gone: bool) -> None:
        """A call got no proper answer. `is_gone`: there was not even a connection, or no sign of life for very long."""
        self._n_faults += 1
        now = self._clock.monotonic()
        is_enough = is_gone or self._n_faults >= FAULTS_TO_FAIL or self.has_failed
        if is_enough and now >= self._rests_until:  # else the calls that were under way when it failed would add up
            self._rests_until = now + min(FIRST_REST_SECONDS * 2.0**self._n_rests, LONGEST_REST_SECONDS)
            self._n_rests = min(self._n_rests + 1, 16)


class Endpoints:
    """Chooses. Sessions that have not been heard of for long are forgotten."""

    def __init__(self, endpoints: Sequence[Endpoint], *, max_sessions: int = MAX_SESSIONS) -> None:
        self._endpoints = tuple(endpoints)
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, Endpoint] = OrderedDict()

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._endpoints)

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def n_sessions(self) -> int:
        return len(self._sessions)

    def choose(self, session: str, *, rather_than: Collection[Endpoint] = ()) -> Endpoint:
        """Where the next call of `session` goes; a call without a session goes to the least loaded one.

        One of `rather_than` is chosen only if no other can be used. A call that is sent elsewhere for that does not
        move its session: the next one begins where the prompt is in the cache.
        """
        if len(self._endpoints) == 1:
            return self._endpoints[0]
        if not session:
            return self._least_loaded(rather_than)
        home = self._sessions.get(session)
        if home is None or not home.is_usable:
            home = self._least_loaded(rather_than)
            self._assign(session, home)
        self._sessions.move_to_end(session)
        return home if home not in rather_than else self._least_loaded(rather_than)

    def leave(self, session: str, endpoint: Endpoint) -> None:
        """The session goes on elsewhere, if it is with `endpoint` and there is another."""
        if self._sessions.get(session) is endpoint:
            self._assign(session, self._least_loaded((endpoint,)))

    def last_hope(self, failed: Collection[Endpoint]) -> Endpoint | None:
        """One that is not among `failed`, though it rests: it may be back."""
        left = [endpoint for endpoint in self._endpoints if endpoint not in failed]
        return min(left, key=lambda endpoint: endpoint.rests_until, default=None)

    def _least_loaded(self, rather_than: Collection[Endpoint]) -> Endpoint:
        usable = [endpoint for endpoint in self._endpoints if endpoint.is_usable]
        usable = [endpoint for endpoint in usable if endpoint not in rather_than] or usable
        if not usable:  # all have failed: the one that has rested longest is as good a hope as any
            return min(self._endpoints, key=lambda endpoint: endpoint.rests_until)
        return min(usable, key=lambda endpoint: (endpoint.gate.load, endpoint.n_sessions))

    def _assign(self, session: str, endpoint: Endpoint) -> None:
        before = self._sessions.pop(session, None)
        if before is not None:
            before.n_sessions -= 1
        self._sessions[session] = endpoint
        endpoint.n_sessions += 1
        if len(self._sessions) > self._max_sessions:
            _, forgotten = self._sessions.popitem(last=False)
            forgotten.n_sessions -= 1
