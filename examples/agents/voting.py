"""Ask a model five times and answer what it says most: `outrider run --mode math --agent voting:vote`.

Extra: `math`.
"""

import asyncio
from collections import Counter
from typing import Any

from outrider import Context
from outrider.policy import Sampling

N_VOTES = 5


async def vote(task: Any, ctx: Context) -> str:
    """Five answers at once to the same question; each call has a seed of its own. A text is the final answer."""
    hot = Sampling(temperature=1.0)
    completions = await asyncio.gather(*(ctx.policy.complete(ctx.opening, sampling=hot) for _ in range(N_VOTES)))
    votes = Counter(completion.message.content.strip() for completion in completions)
    answer, n_votes = votes.most_common(1)[0]
    ctx.log("voted", votes=n_votes, of=N_VOTES)
    return answer
