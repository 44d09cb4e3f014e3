"""What a step of the SQLite engine writes at its end."""

from dataclasses import dataclass, field
from typing import Any

from outrider.store.steps import Report, account_record


@dataclass(slots=True)
class Moves:
    """Rows to write at the end of a step, by the statement that writes them."""

    noted: list[tuple[Any, ...]] = field(default_factory=list)
    live: list[tuple[Any, ...]] = field(default_factory=list)
    followed: list[tuple[Any, ...]] = field(default_factory=list)
    requeued: list[tuple[Any, ...]] = field(default_factory=list)
    ended: list[tuple[Any, ...]] = field(default_factory=list)
    accounts: list[tuple[Any, ...]] = field(default_factory=list)

    def keep_account(self, seq: int, report: Report) -> None:
        """What the attempt took, if it says so; `seq` is where its rollout stands."""
        if (account := report.account) is not None:
            record = account_record(account)
            self.accounts.append((report.attempt_id, account.completion_tokens, record, seq))
