"""How long a call waits for its turn is in its completion."""

import asyncio
import json
import random

from yarl import URL

from outrider.core.chat import user
from outrider.policy.openai.policy import OpenAIPolicy
from outrider.policy.openai.transport import Exchange
from outrider.policy.spec import PolicySpec
from outrider.testing import LoopClock, run_virtual

ANSWER = {"model": "m", "choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}


class SlowWire:
    """Takes two seconds for each answer."""

    async def get(self, url):
        raise NotImplementedError

    async def post(self, url, body, heard=None):
        await asyncio.sleep(2.0)
        return Exchange(status=200, headers={}, body=json.dumps(ANSWER).encode())

    async def close(self): ...


def test_a_call_tells_how_long_it_waited_before_the_server_was_asked():
    async def main():
        spec = PolicySpec(model="m", max_concurrency=1)
        policy = OpenAIPolicy(spec, [URL("http://one/v1")], SlowWire(), LoopClock(), random.Random(3))
        completions = await asyncio.gather(*(policy.complete([user("hi")]) for _ in range(3)))
        await policy.close()
        return [completion.queue_seconds for completion in completions]

    assert run_virtual(main(), limit_seconds=100) == [0.0, 2.0, 4.0]
