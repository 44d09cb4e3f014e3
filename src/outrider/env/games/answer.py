"""The form of an answer: how an agent writes its action, and how it is found in what the agent says."""

import re

DEFAULT_PATTERN = "<answer>(.*?)</answer>"

_TEXT = r"[^\\.^$*+?{}\[\]|()]+"
_PLAIN_PATTERN = re.compile(rf"(?P<before>{_TEXT})\(\.[*+]\?\)(?P<after>{_TEXT})")
_PROBE = "Up"


class AnswerForm:
    """`pattern` finds the action, its one group, in a message; the first match counts.

    `example` shows the form, with `{action}` where the action goes. It may be left out if the pattern is plain text
    around `(.*?)`. Raises ValueError if the two do not fit.
    """

    def __init__(self, pattern: str = DEFAULT_PATTERN, example: str | None = None) -> None:
        try:
            self._pattern = re.compile(pattern, re.DOTALL)
        except re.error as exc:
            raise ValueError(f"action_pattern {pattern!r} is not a regular expression: {exc}") from exc
        if self._pattern.groups != 1:
            raise ValueError(f"action_pattern {pattern!r} must have one group: the action")
        plain = _PLAIN_PATTERN.fullmatch(pattern)
        self._ends = (plain["before"], plain["after"]) if plain else None
        if example is None:
            if self._ends is None:
                raise ValueError(
                    f"action_pattern {pattern!r} needs an answer_example, such as '<move>{{action}}</move>'"
                )
            example = "{action}".join(self._ends)
        if "\n" in example:
            raise ValueError(f"answer_example {example!r} must be one line")
        self._example = example
        if self.find(self.write(_PROBE)) != _PROBE:
            raise ValueError(f"action_pattern {pattern!r} does not find {{action}} in answer_example {example!r}")

    def write(self, action: str) -> str:
        """An answer that asks for `action`."""
        return self._example.replace("{action}", action)

    def described(self, action: str) -> str:
        """The form in words, with `action` as the example."""
        return f"in the form {self.write('ACTION')}, for example: {self.write(action)}"

    def find(self, text: str) -> str | None:
        """The action that `text` asks for."""
        if self._ends is not None:
            # Finds what the pattern finds, but a text with many openings and no end takes linear time only.
            _, before, rest = text.partition(self._ends[0])
            action, after, _ = rest.partition(self._ends[1])
            return action.strip() if before and after else None
        found = self._pattern.search(text)
        return None if found is None or found[1] is None else found[1].strip()
