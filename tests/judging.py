"""What a judge says that finds everything right."""

import re
from collections.abc import Sequence

from outrider.core.chat import Message
from outrider.testing.model_server_wire import ModelRequest


def code_in(messages: Sequence[Message]) -> str:
    """The code that a verdict must carry, as the judge is told it."""
    return str(re.findall(r"^VERDICT (\w+): INCORRECT$", messages[0].content, re.MULTILINE)[-1])


def agreeing(request: ModelRequest) -> str:
    if len(request.messages) == 1 and request.messages[0].content == "Hi":
        return "Hello"  # to one who asks whether there is a judge
    return f"It says the same.\nVERDICT {code_in(request.messages)}: CORRECT"
