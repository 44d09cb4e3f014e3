"""What several agree on."""

from collections import Counter
from collections.abc import Sequence

from outrider.orchestra.caller import Reply


def most_said(replies: Sequence[Reply]) -> tuple[Reply, int]:
    """The first reply with the value that most of them have, and how many have it; None is no value."""
    counts = Counter(reply.value for reply in replies if reply.value is not None)
    if not counts:
        return replies[0], 0
    value, n = counts.most_common(1)[0]
    return next(reply for reply in replies if reply.value == value), n
