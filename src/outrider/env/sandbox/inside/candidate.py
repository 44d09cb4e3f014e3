"""The submission's process: runs the submission, then does what the tests' process asks of it.

All this runs beside the submission, which can change it as it likes. That is no matter: what it says is only ever taken
for what the submission answers.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types

from outrider.env.sandbox.inside.exchange import (
    BINARY,
    COMPARING,
    MUTABLE_TYPES,
    Channel,
    decode,
    encode,
    plain_form,
    plain_kind,
)

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from typing import Any

MODULE = "submission"
"""Not `__main__`: what a program does when it is run by itself is not wanted here."""

OPERATORS = {
    "__eq__": operator.eq,
    **{f"__{name}__": operation for name, operation in {**BINARY, **COMPARING}.items()},
    **{f"__i{name}__": getattr(operator, f"__i{name}__") for name in BINARY if name != "divmod"},
}
"""As Python does them, with all that it tries if the left side does not know how."""


class Candidate:
    """Objects that are not plain data stay here, by number; callables of the tests stay there, by number too."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._held: list[Any] = []

    def load(self, source: bytes) -> types.ModuleType:
        module = types.ModuleType(MODULE)
        sys.modules[MODULE] = module
        exec(compile(source, f"{MODULE}.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 the very purpose of the sandbox
        return module

    def introduce(self, module: types.ModuleType) -> None:
        """Tell the names that tests may use; modules by their own name, what may be large by reference."""
        names = {}
        for name, value in vars(module).items():
            if isinstance(value, types.ModuleType):
                names[name] = {"type": "module", "name": value.__name__}
            elif not name.startswith("__"):
                names[name] = value if value is None or type(value) in (bool, float) else self._refer(value)
        self._channel.send({"names": names})

    def serve(self) -> None:
        """Answer until there is nobody left to ask."""
        while True:
            self._answer(self._channel.receive())

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            arguments = [self._decode(item) for item in request["arguments"]]
            keywords = {name: self._decode(item) for name, item in request["keywords"].items()}
            value = self._do(request["do"], arguments, keywords)
            changed = {
                str(place): self._encode(item)
                for place, (item, sent) in enumerate(zip(arguments, request["arguments"], strict=True))
                if type(item) in MUTABLE_TYPES and not _is_reference(sent)
            }
            reply = {"value": self._encode(value), "changed": changed}
        except BaseException as exc:  # noqa: BLE001 the tests shall see it
            reply = {"raised": _ancestry(type(exc)), "arguments": self._arguments_of(exc)}
        self._channel.send(reply)

    def _arguments_of(self, exc: BaseException) -> list[Any]:
        try:
            return [self._encode(item) for item in exc.args]
        except Exception:  # noqa: BLE001 what it carries may be anything
            return []

    def _do(self, what: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        match what:
            case "call":
                return arguments[0](*arguments[1:], **keywords)
            case "getattr" | "setattr" | "isinstance" | "issubclass" | "bool" | "hash" | "iter":
                return getattr(builtins, what)(*arguments)
            case "plain":
                return plain_form(arguments[0])
            case _ if what in OPERATORS:
                return OPERATORS[what](*arguments)
            case _ if hasattr(kind := type(arguments[0]), what):
                return getattr(kind, what)(*arguments, **keywords)
            case _:
                raise TypeError(f"an object of class {kind.__name__} has no {what}")

    def _encode(self, value: Any) -> Any:
        return encode(value, self._refer)

    def _refer(self, value: Any) -> dict[str, Any]:
        if isinstance(value, _Callback):
            return {"type": "callback", "id": value.number}
        self._held.append(value)
        reference: dict[str, Any] = {"type": "object", "id": len(self._held) - 1}
        if isinstance(value, type) and issubclass(value, BaseException):
            reference["raised"] = _ancestry(value)
        elif (kind := plain_kind(value)) is not None:
            reference["kind"] = kind.__name__
        return reference

    def _decode(self, message: Any) -> Any:
        return decode(message, self._resolve)

    def _resolve(self, message: dict[str, Any]) -> Any:
        match message["type"]:
            case "callback":
                return _Callback(self, message["id"])
            case "builtin":
                return getattr(builtins, message["name"])
            case _:
                return self._held[message["id"]]

    def call_back(self, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a function of the tests, which may in turn ask things of us before it answers."""
        named = {name: self._encode(item) for name, item in keywords.items()}
        self._channel.send({"callback": number, "arguments": list(map(self._encode, arguments)), "keywords": named})
        while "do" in (reply := self._channel.receive()):
            self._answer(reply)
        if "raised" in reply:
            raise getattr(builtins, reply["raised"], RuntimeError)(*map(self._decode, reply["arguments"]))
        return self._decode(reply["value"])


class _Callback:
    """A function that lives in the tests' process."""

    def __init__(self, candidate: Candidate, number: int) -> None:
        self._candidate = candidate
        self.number = number

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._candidate.call_back(self.number, arguments, keywords)


def _is_reference(message: Any) -> bool:
    return isinstance(message, dict) and message.get("type") == "object"


def _ancestry(kind: type[BaseException]) -> list[str]:
    """The names of an exception and of what it derives from, nearest first."""
    return [base.__name__ for base in kind.__mro__ if issubclass(base, BaseException)]


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 the submission's own `__str__`
        return ""


def main(incoming: int, outgoing: int, source: bytes) -> None:
    channel = Channel(incoming, outgoing)
    candidate = Candidate(channel)
    try:
        module = candidate.load(source)
    except BaseException as exc:  # noqa: BLE001 whatever it is, it is the submission's
        sys.excepthook(type(exc), exc, exc.__traceback__)
        channel.send({"broken": f"{type(exc).__name__}: {_text(exc)}"})
        return
    candidate.introduce(module)
    candidate.serve()
