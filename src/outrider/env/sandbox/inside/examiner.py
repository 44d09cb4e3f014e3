"""The tests' process: runs the tests against a submission that lives in another process, and gives the verdicts.

The submission's functions and classes stand in the tests' namespace as remote ones; what they return is plain data or
remote. They cannot stand for built-in functions or modules of the standard library, by which tests judge.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import signal
import sys
from types import ModuleType

from outrider.env.sandbox.inside.exchange import PLAIN_TYPES, Channel, decode, encode, restore
from outrider.env.sandbox.inside.remote import Remote, SubmissionError, plain_of, state_of

TYPE_CHECKING = False  # `typing` takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VERDICTS = 1
"""The descriptor to which verdicts go. What tests print goes elsewhere."""

ENDED = "the program has ended"

MODULES = ("solution", "submission")
"""What tests may import the submission as."""

_KINDS = {kind.__name__: kind for kind in PLAIN_TYPES}


class Lost(BaseException):
    """The submission's process has ended or does not answer: no further test can run beside it."""


class Examiner:
    """Asks one submission. `lost` is why it cannot be asked any more, `n_asked` counts what may have changed it."""

    def __init__(self, channel: Channel) -> None:
        self.lost = ""
        self.n_asked = 0
        self._channel = channel
        self._callbacks: list[Callable[..., Any]] = []
        self._exceptions: dict[str, type[Exception]] = {}

    def names(self, entry_point: str) -> dict[str, Any]:
        """What the submission has defined. Raises `SubmissionError` if it could not be loaded."""
        message = self._receive()
        if not isinstance(names := message.get("names"), dict):
            raise SubmissionError(str(message.get("broken"))[:500])
        found = {}
        for name, value in names.items():
            if name == entry_point or not (hasattr(builtins, name) or name.startswith("__")):
                module = isinstance(value, dict) and value.get("type") == "module"
                if name != entry_point and (module or name in sys.stdlib_module_names):
                    found.update(_module(name, value["name"]) if module else {})
                else:
                    found[name] = self.decode(value)
        return found

    def ask(self, what: str, *arguments: Any, **keywords: Any) -> Any:
        self.n_asked += what != "plain"
        self._send(what, arguments, keywords)
        while "callback" in (reply := self._receive()):
            self._call_back(reply)
        if "value" in reply:
            value = self.decode(reply["value"])
            changed = reply.get("changed") if what == "call" else None  # no operator changes the other side
            for place, item in changed.items() if isinstance(changed, dict) else ():
                if place.isdecimal() and int(place) < len(arguments):
                    restore(arguments[int(place)], self.decode(item))
            return value
        kind = self._exception_class(reply.get("raised"))
        if issubclass(kind, StopIteration | StopAsyncIteration) and what != "__next__":
            kind = SubmissionError  # it would end a loop of the tests, as if all were done
        raise self._exception(kind, self.decode(reply.get("arguments")))

    def decode(self, message: Any) -> Any:
        return decode(message, self._resolve)

    def give_up(self, reason: str) -> Lost:
        self.lost = self.lost or reason
        return Lost(reason)

    def _resolve(self, message: dict[str, Any]) -> Any:
        if message["type"] == "callback":
            return self._callbacks[message["id"]]
        if "raised" in message:
            return self._exception_class(message["raised"])
        return Remote(self, int(message["id"]), _KINDS.get(str(message.get("kind"))))

    def _refer(self, value: Any) -> dict[str, Any]:
        if type(value) is Remote:
            return {"type": "object", "id": state_of(value).number}
        name = getattr(value, "__name__", "")
        if name and getattr(builtins, name, None) is value:
            return {"type": "builtin", "name": name}
        if callable(value):
            self._callbacks.append(value)
            return {"type": "callback", "id": len(self._callbacks) - 1}
        raise TypeError(f"a {type(value).__name__} of the tests cannot be passed to the submission")

    def _call_back(self, request: dict[str, Any]) -> None:
        try:
            arguments = [self.decode(item) for item in request["arguments"]]
            keywords = {name: self.decode(item) for name, item in request["keywords"].items()}
            value = self._callbacks[request["callback"]](*arguments, **keywords)
            reply = {"value": encode(value, self._refer)}
        except Exception as exc:  # noqa: BLE001 the submission shall see what its call led to
            given = [encode(item, lambda _: {"type": "tuple", "content": []}) for item in exc.args]
            reply = {"raised": type(exc).__name__, "arguments": given}
        self._channel.send(reply)

    def _exception(self, kind: type[Exception], arguments: Any) -> Exception:
        try:
            return kind(*arguments)
        except TypeError:
            return SubmissionError(f"{kind.__name__}{arguments!r:.500}")

    def _exception_class(self, ancestry: Any) -> type[Exception]:
        """A built-in class of exceptions, or one that derives from it under the submission's name."""
        names = [str(name) for name in ancestry] if isinstance(ancestry, list) else []
        for place, name in enumerate(names):
            found = getattr(builtins, name, None)
            if isinstance(found, type) and issubclass(found, Exception):
                for own in reversed(names[:place]):
                    found = self._exceptions.setdefault(own, type(own, (found,), {}))
                return found
        return SubmissionError

    def _send(self, what: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self.lost:
            raise Lost(self.lost)
        given = [encode(item, self._refer) for item in arguments]
        named = {name: encode(item, self._refer) for name, item in keywords.items()}
        try:
            self._channel.send({"do": what, "arguments": given, "keywords": named})
        except OSError as exc:
            raise self.give_up(ENDED) from exc

    def _receive(self) -> dict[str, Any]:
        try:
            message = self._channel.receive()
        except EOFError as exc:
            raise self.give_up(ENDED) from exc
        except ValueError as exc:
            raise self.give_up(f"the program's answer cannot be read: {exc}"[:500]) from exc
        return message if isinstance(message, dict) else {}


def _module(name: str, path: Any) -> dict[str, Any]:
    """The module that the submission imported under this name, if it is one of the standard library.

    No other stands for one that has this very name.
    """
    known = sys.stdlib_module_names
    if isinstance(path, str) and path.partition(".")[0] in known and (name not in known or name == path):
        return {name: importlib.import_module(path)}
    return {}


class Examination:
    """The tests of one task, in the form the host gives them, numbered as it does."""

    def __init__(self, examiner: Examiner, given: dict[str, Any]) -> None:
        self._examiner = examiner
        self._given = given
        self._namespace: dict[str, Any] = {"__name__": "tests"}

    def begin(self) -> None:
        """Load what the tests share."""
        names = self._examiner.names(self._given["entry_point"])
        self._namespace.update(names)
        for name in MODULES:
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(names)
        exec(compile(self._given["setup"], "tests.py", "exec", dont_inherit=True), self._namespace)  # noqa: S102 tests are programs

    def run(self, test: dict[str, Any]) -> None:
        """Raise whatever says that the test has failed."""
        match test["form"]:
            case "code":
                exec(compile(test["code"], "test", "exec", dont_inherit=True), self._namespace)  # noqa: S102
            case "function":
                entry_point = self._namespace.get(self._given["entry_point"])
                self._namespace[test["name"]](*([entry_point] if test["takes_entry_point"] else []))
            case "call":
                result = self._namespace[self._given["entry_point"]](*test["args"], **test["kwargs"])
                assert _listed(result) == _listed(test["result"]), f"got {result!r}, not {test['result']!r}"[:500]


def _listed(value: Any) -> Any:
    """With lists for tuples: a file of tests knows no others."""
    value = value if (plain := plain_of(value)) is None else plain
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return {key: _listed(item) for key, item in value.items()} if isinstance(value, dict) else value


def main(incoming: int, outgoing: int, tests: str) -> None:
    given = json.loads(tests)
    sys.stdout = sys.stderr
    examiner = Examiner(Channel(incoming, outgoing))
    signal.signal(signal.SIGALRM, lambda _, __: _out_of_time(examiner, given["seconds"]))
    examination = Examination(examiner, given)
    if (reason := _tried(examiner, given["seconds"], examination.begin)) is not None:
        _tell({"unusable": reason})
        return
    _tell({"loaded": True})
    for number, test in given["tests"].items():
        reason = _tried(examiner, given["seconds"], lambda test=test: examination.run(test))  # type: ignore[misc]
        _tell({"test": number, "passed": reason is None, "reason": reason})
        if examiner.lost:
            return


def _tried(examiner: Examiner, seconds: float, work: Callable[[], None]) -> str | None:
    """Why it failed; None: it did not. A test that swallows the loss of the submission has not passed."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        work()
    except SubmissionError as exc:
        return examiner.lost or str(exc)
    except SystemExit as exc:
        return examiner.lost or (f"exit code {exc.code}" if exc.code else None)
    except BaseException as exc:  # noqa: BLE001 any other exception is a failed test
        return examiner.lost or f"{type(exc).__name__}: {exc}".removesuffix(": ")[:500]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return examiner.lost or None


def _out_of_time(examiner: Examiner, seconds: float) -> None:
    raise examiner.give_up(f"it took longer than {seconds:g} s")


def _tell(verdict: dict[str, Any]) -> None:
    content = json.dumps(verdict).encode() + b"\n"
    while content:
        content = content[os.write(VERDICTS, content) :]
