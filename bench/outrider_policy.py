"""Outrider's model client as a process under measurement; `bench/policy.py` starts it and asks."""

from collections.abc import Sequence

from outrider.core.chat import assistant, user
from outrider.policy.openai.policy import OpenAIPolicy, open_openai_policy
from outrider.policy.spec import PolicySpec
from policy_workload import MODEL, PolicyWorkload
from subject import Answer, serve


class OutriderWorkload(PolicyWorkload):
    """Two policies, since streaming is a setting of the whole policy."""

    def __init__(self) -> None:
        self._policies: dict[bool, OpenAIPolicy] = {}

    async def open(self, url: str) -> Answer:
        for stream in (False, True):
            spec = PolicySpec(model=MODEL, base_urls=(url,), stream=stream)
            self._policies[stream] = await open_openai_policy(spec)
        return {}

    async def close(self) -> Answer:
        for policy in self._policies.values():
            await policy.close()
        return {}

    async def call(self, texts: Sequence[str], *, stream: bool) -> str:
        messages = [assistant(text) if number % 2 else user(text) for number, text in enumerate(texts)]
        completion = await self._policies[stream].complete(messages)
        return completion.message.content


if __name__ == "__main__":
    serve(OutriderWorkload().works())
