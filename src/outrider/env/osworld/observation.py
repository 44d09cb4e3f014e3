"""What a model sees of the machine: its screen, the tree of what is on it, or its terminal."""

from dataclasses import dataclass
from enum import StrEnum

from outrider.core.animation import Animation
from outrider.core.chat import Image
from outrider.core.clock import Clock
from outrider.core.errors import EnvError
from outrider.env.osworld.settling import patiently, settled
from outrider.pool.computer import Computer


class ObservationType(StrEnum):
    """What is shown after each action."""

    SCREENSHOT = "screenshot"
    A11Y_TREE = "a11y_tree"
    """The accessibility tree as XML."""

    SCREENSHOT_A11Y_TREE = "screenshot_a11y_tree"
    TERMINAL = "terminal"
    """The text of the terminal in front, for machines without a screen too."""

    @property
    def has_picture(self) -> bool:
        return self in {ObservationType.SCREENSHOT, ObservationType.SCREENSHOT_A11Y_TREE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What was seen: text, and a picture if there is one."""

    text: str
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Looks at a machine once it has settled. A look that fails is repeated; the last failure is raised.

    Every picture goes into the recording; the one that is shown is kept in it.
    """

    computer: Computer
    clock: Clock
    type: ObservationType
    interval_seconds: float
    limit_seconds: float
    max_chars: int
    recording: Animation

    def check(self) -> None:
        """Raise `EnvError` if the machine has no screen and one is to be shown."""
        if self.type.has_picture and 0 in self.computer.screen_size:
            raise EnvError(
                f"the machine has no screen, so observation_type {self.type} shows nothing; use terminal",
                stage="env.reset",
            )

    async def look(self) -> Sight:
        picture = await self._settled_picture()
        match self.type:
            case ObservationType.SCREENSHOT:
                text = "This is the screen."
            case ObservationType.A11Y_TREE | ObservationType.SCREENSHOT_A11Y_TREE:
                text = f"The accessibility tree of the screen:\n{self._bounded(await self._tree())}"
            case ObservationType.TERMINAL:
                text = f"The terminal shows:\n{self._bounded(await self._terminal())}"
        shown = self.type.has_picture and picture is not None
        return Sight(text=text, images=(Image(data=picture),) if shown and picture is not None else ())

    async def _settled_picture(self) -> bytes | None:
        """The screen after it came to rest; a machine without one is at rest when its terminal is."""
        limits = {"interval_seconds": self.interval_seconds, "limit_seconds": self.limit_seconds}
        if 0 in self.computer.screen_size:
            await settled(self._terminal, self.clock, **limits)
            return None
        picture = await settled(self._picture, self.clock, **limits)
        self.recording.add(picture, self.clock.monotonic(), keep=True)
        return picture

    async def _picture(self) -> bytes:
        picture = await patiently(self.computer.screenshot, self.clock)
        self.recording.add(picture, self.clock.monotonic())
        return picture

    async def _tree(self) -> str:
        return await patiently(self.computer.accessibility_tree, self.clock)

    async def _terminal(self) -> str:
        return await patiently(self.computer.terminal_text, self.clock) or "(nothing)"

    def _bounded(self, text: str) -> str:
        """The text, or its end if it is a terminal's and its beginning if it is a tree's, with what was left out."""
        left_out = len(text) - self.max_chars
        if left_out <= 0:
            return text
        if self.type is ObservationType.TERMINAL:
            return f"[{left_out} characters before this are left out]\n{text[left_out:]}"
        return f"{text[: self.max_chars]}\n[{left_out} characters after this are left out]"
