"""The course of one call through the endpoints: never back to one that has failed it while another is left."""

from outrider.core.errors import PolicyError
from outrider.policy.openai.endpoints import Endpoint, Endpoints
from outrider.policy.openai.failure import Setback
from outrider.policy.openai.reply import MalformedReply


class Course:
    """What became of a call so far.

    An endpoint that was *asked* may still answer; one that *failed* it may do better after a pause; one that *refused*
    it (a wrong key or model there, a field that it does not take) is not asked again.
    """

    def __init__(self, endpoints: Endpoints, session: str) -> None:
        self.n_tries = 0
        self.n_pauses = 0
        self.setback: PolicyError | None = None
        """The last failure that may pass."""
        self._endpoints = endpoints
        self._session = session
        self._asked: set[Endpoint] = set()
        self._failed: set[Endpoint] = set()
        self._refused: dict[Endpoint, PolicyError] = {}

    @property
    def may_repeat(self) -> bool:
        """Whether a pause could help."""
        return bool(self._failed)

    def next(self, *, may_pause: bool) -> Endpoint | None:
        """Another endpoint to ask now; None: all that are known to be there have been asked, or have failed.

        One that rests is asked at last, when no answer can come and there will be no pause.
        """
        tried = {*self._asked, *self._failed, *self._refused}
        endpoint = self._endpoints.choose(self._session, rather_than=tried)
        if endpoint not in tried:
            return endpoint
        can_wait = self._asked or (may_pause and self._failed)
        return None if can_wait else self._endpoints.last_hope(tried)

    def begin(self, endpoint: Endpoint) -> int:
        """The call is sent to `endpoint`: the number of the try."""
        self.n_tries += 1
        self._asked.add(endpoint)
        return self.n_tries

    def failed(self, endpoint: Endpoint, error: PolicyError) -> None:
        self._asked.discard(endpoint)
        if isinstance(error, Setback | MalformedReply):
            self.setback = error
            self._failed.add(endpoint)
        else:
            self._refused[endpoint] = error

    def paused(self) -> None:
        """Those that have failed get another try."""
        self.n_pauses += 1
        self._failed.clear()

    def error(self) -> PolicyError:
        """Why the call is given up. Where all endpoints have refused it, it is the first refusal."""
        refusal = next(iter(self._refused.values()), None)
        if refusal is not None and not self._failed:
            return refusal
        error = PolicyError(f"{self.setback} (given up after try {self.n_tries})", stage="policy.complete")
        error.__cause__ = self.setback
        return error
