"""The scripts that come with Outrider: one for each domain of its environments, and one for members of teams."""

from collections.abc import Mapping

from outrider.policy.scripted.games import GamesScript
from outrider.policy.scripted.greeting import GreetingScript
from outrider.policy.scripted.math import MathScript
from outrider.policy.scripted.osworld import OsworldScript
from outrider.policy.scripted.protocol import Script
from outrider.policy.scripted.python import PythonScript
from outrider.policy.scripted.rag import RagScript
from outrider.policy.scripted.teams import TeamsScript
from outrider.policy.scripted.web import WebScript


def bundled_scripts() -> Mapping[str, Script]:
    """By name, in the order in which they are asked."""
    domains: Mapping[str, Script] = {
        "games": GamesScript(),
        "math": MathScript(),
        "rag": RagScript(),
        "web": WebScript(),
        "osworld": OsworldScript(),
        "python": PythonScript(),
    }
    return {"teams": TeamsScript(domains), **domains, "greetings": GreetingScript()}
