"""Each write that outlives its process has a crash point beside it, at which a scenario is killed, or a reason.

Of several writes of a function, there is a point between each two.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import outrider

SOURCE = Path(outrider.__file__).parent

STORE_WRITES = frozenset({
    "enqueue_rollout", "enqueue_many_rollouts", "update_rollout", "update_attempt", "append_events", "revoke_leases",
    "cancel_rollouts", "put_resources", "open_ledger", "write_ledger", "open_pool", "write_machines",
})  # fmt: skip

WITHOUT_A_POINT: dict[str, str] = {
    "cli/cancel.py": "one transaction, the only write of its command",
    "cli/output.py": "what a person reads",
    "cli/signals.py:relay": "wakes the event loop of its process",
    "core/files.py:append_whole": "its callers have the points; tests/unit/evaluate tears its lines",
    "cli/retry.py:_retry": "one transaction, the only write of its command",
    "env/rag/cache.py": "an index, made anew from the corpus where it is not whole",
    "env/sandbox": "pipes between processes, and the user map of one that lives",
    "evaluate/results_file.py:_cut_torn_line": "mends what the next opening would mend",
    "policy/recording/record.py:_write_all": "its caller has the point",
    "pool/desktop/walls.py": "settings of a process that lives",
    "pool/hypervisor/places.py": "found to be of a dead process, and replaced by who comes next",
    "pool/providers/browser.py": "of a browser that ends with its owner",
    "pool/qemu": "images and templates, made in a folder of their own and renamed when they are whole",
    "pool/sandbox": "files of a sandbox and of processes, which end with their owner",
    "pool/service/place.py": "tells of a pool that lives, under a lock that ends with its process",
    "store/fifo_bell.py": "wakes processes, which look for themselves if nobody does",
    "store/sqlite/lock_signal.py": "wakes processes, which look for themselves if nobody does",
    "store/handle.py:_give_back": "one transaction; a lease that is not given back expires",
    "store/history.py": "the record that the checker reads",
    "train/atif.py": "an export, made anew by repeating the command; a file takes its place when it is whole",
    "train/driver.py:_write": "its caller has the points",
    "train/scheduler.py:_cancel_left_over": "cancels what nobody waits for, and again when the ledger is opened",
    "train/scheduler.py:_put": "its caller has the points",
}
"""By file, folder or `file:function`: why no process need be killed there."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def writes(path: Path) -> Iterator[tuple[str, str]]:
    """The durable writes without a point beside them: the functions they are in, and what they call."""
    tree = tree_of(path)
    yield from _writes(tree, "", has_point=False)


def _writes(node: ast.AST, function: str, *, has_point: bool) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _writes(child, child.name, has_point=has_point or _has_point(child))
            continue
        if isinstance(child, ast.Call) and not has_point and _is_durable(child):
            yield function, ast.unparse(child.func)
        yield from _writes(child, function, has_point=has_point)


def _has_point(function: ast.AST) -> bool:
    return any(_is_point(node) for node in ast.walk(function))


def _is_point(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reached"


def unseparated(path: Path) -> Iterator[tuple[str, str]]:
    """The durable writes that follow another of the same function without a point between them, as `writes` has them.

    They are taken in the order of their lines; a loop counts as run twice.
    """
    for function in ast.walk(tree_of(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            follows = False
            for call in _calls_of(function):
                if follows and not _is_point(call):
                    yield function.name, ast.unparse(call.func)
                follows = not _is_point(call)


def _calls_of(node: ast.AST) -> Iterator[ast.Call]:
    """The durable writes and points of a function, but for those of functions in it, in order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inner = list(_calls_of(child))
        yield from inner * 2 if isinstance(child, ast.For | ast.AsyncFor | ast.While) else inner
        if isinstance(child, ast.Call) and (_is_point(child) or _is_durable(child)):
            yield child


def _is_durable(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    if name in STORE_WRITES:
        return ast.unparse(call.func.value).endswith("store")
    if isinstance(call.func.value, ast.Name) and call.func.value.id == "os":
        return name in {"write", "replace", "rename", "link", "symlink"}
    if name in {"rename", "replace"}:  # of a text it takes two, of a struct it takes names
        return len(call.args) == 1 and not call.keywords
    return name in {"write_text", "write_bytes"}


@cache
def unguarded() -> frozenset[tuple[str, str, str]]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        found |= {(name, function, what) for function, what in (*writes(path), *unseparated(path))}
    return frozenset(found)


def _allowed_by(name: str, function: str) -> set[str]:
    return {key for key in WITHOUT_A_POINT if key in {f"{name}:{function}", name} or name.startswith(f"{key}/")}


def test_a_write_that_follows_another_without_a_point_is_found(tmp_path: Path):
    (path := tmp_path / "module.py").write_text(
        """
async def close(store, items):
    await store.enqueue_rollout(None)
    reached("noted")
    await store.cancel_rollouts([1])
    await store.cancel_rollouts(items)
    reached("closed")
    for item in items:
        await store.put_resources(item)

def write(path):
    path.with_suffix(".new").write_text("")
    reached("written")
    path.with_suffix(".new").rename(path)
"""
    )
    assert list(writes(path)) == []
    assert list(unseparated(path)) == [("close", "store.cancel_rollouts"), ("close", "store.put_resources")]


def test_each_durable_write_has_a_crash_point_beside_it_or_a_reason():
    assert {one for one in unguarded() if not _allowed_by(one[0], one[1])} == set()


def test_no_reason_is_given_for_what_is_not_there():
    used = {key for name, function, _ in unguarded() for key in _allowed_by(name, function)}
    assert set(WITHOUT_A_POINT) - used == set()
