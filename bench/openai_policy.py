"""The `openai` SDK as a process under measurement, in an environment of its own; `bench/policy.py` starts it."""

from collections.abc import Sequence

from openai import AsyncOpenAI

from policy_workload import MODEL, PolicyWorkload
from subject import Answer, serve


class OpenAIWorkload(PolicyWorkload):
    """One client, as its documentation shows."""

    async def open(self, url: str) -> Answer:
        self._client = AsyncOpenAI(base_url=url, api_key="none")
        return {}

    async def close(self) -> Answer:
        await self._client.close()
        return {}

    async def call(self, texts: Sequence[str], *, stream: bool) -> str:
        messages = [
            {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)
        ]
        if not stream:
            completion = await self._client.chat.completions.create(model=MODEL, messages=messages)
            return completion.choices[0].message.content
        options = {"include_usage": True}
        create = self._client.chat.completions.create
        chunks = await create(model=MODEL, messages=messages, stream=True, stream_options=options)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])


if __name__ == "__main__":
    serve(OpenAIWorkload().works())
