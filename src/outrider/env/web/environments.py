"""The web environments of one worker: they share its browser."""

from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Struct

from outrider.core.bounds import MAX_COUNT, MAX_SECONDS, PositiveCount, Within, check_bounds
from outrider.core.errors import InvalidInput
from outrider.core.task import Task
from outrider.env.protocol import Environments, Needs
from outrider.env.scoring import FORM_FIELDS, ScorerConfig, scorer_by_form
from outrider.env.web.actions import Actions
from outrider.env.web.browser import Browser
from outrider.env.web.ending import EndingScorer
from outrider.env.web.environment import WebEnvironment
from outrider.env.web.gate import Gate
from outrider.env.web.hosts import AllowedHosts
from outrider.env.web.process import require_playwright
from outrider.env.web.site import BUNDLED, Site
from outrider.env.web.task import WebTask, web_task
from outrider.pool.browser.executable import find_chromium, require_display
from outrider.pool.provider import Ability


class WebConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`pages`: a folder with a folder for each site, instead of the bundled ones.

    A Chromium process serves `max_contexts` episodes at once, and is replaced after `max_contexts_per_process` of them
    or `max_process_minutes`. `executable`: see `find_chromium`.
    """

    allowed_hosts: tuple[str, ...] = ()
    pages: str | None = None
    scorer: str | None = None
    scorer_config: ScorerConfig = ScorerConfig()
    executable: str | None = None
    headless: bool = True
    max_contexts: PositiveCount = 16
    max_contexts_per_process: PositiveCount = 200
    max_process_minutes: Annotated[float, Within(0, MAX_SECONDS / 60, above=True)] = 60.0
    action_seconds: Annotated[float, Within(0, 300, above=True)] = 15.0
    max_text_chars: Annotated[int, Within(100, MAX_COUNT)] = 12_000

    def __post_init__(self) -> None:
        check_bounds(self)


class WebEnvironments(Environments):
    """`make` reads the task; the browser is started by the first `reset`."""

    Config: ClassVar[type[WebConfig]] = WebConfig
    task_fields = FORM_FIELDS.union(WebTask.__struct_fields__)

    def __init__(self, config: WebConfig) -> None:
        AllowedHosts(config.allowed_hosts)
        self._config = config
        self._scorer = scorer_by_form(config.scorer, config.scorer_config, usual="exact_match")
        self._browser: Browser | None = None

    def make(self, task: Task) -> WebEnvironment:
        config = self._config
        web = web_task(task)
        site = None if web.site is None else Site(self._folder, web.site)
        actions = Actions(seconds=config.action_seconds, max_chars=config.max_text_chars)
        scorer = EndingScorer(self._scorer, web.check, actions)
        scorer.check_task(task)
        return WebEnvironment(
            task,
            browser=self._shared_browser(),
            gate=Gate(AllowedHosts(config.allowed_hosts, web.allowed_hosts), site),
            actions=actions,
            scorer=scorer,
            start=web.url or (None if site is None else site.url),
        )

    @property
    def needs(self) -> Needs:
        return Needs(abilities=frozenset({Ability.DEVTOOLS}), optional=True)

    async def check(self) -> None:
        require_playwright()
        find_chromium(self._config.executable)
        if not self._config.headless:
            require_display()
        if not self._folder.is_dir():
            raise InvalidInput(f"pages {str(self._folder)!r} is not a folder")
        await self._scorer.check()

    async def close(self) -> None:
        try:
            if self._browser is not None:
                await self._browser.close()
        finally:
            await self._scorer.close()

    @property
    def _folder(self) -> Path:
        return BUNDLED if self._config.pages is None else Path(self._config.pages)

    def _shared_browser(self) -> Browser:
        if self._browser is None:
            require_playwright()
            self._browser = Browser(
                executable=find_chromium(self._config.executable),
                headless=self._config.headless,
                max_contexts=self._config.max_contexts,
                max_contexts_per_process=self._config.max_contexts_per_process,
                max_process_minutes=self._config.max_process_minutes,
            )
        return self._browser
