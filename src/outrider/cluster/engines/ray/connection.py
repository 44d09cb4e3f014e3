"""The Ray that this process works on: the one it has, the one it was pointed to, or one of its own."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import worker as ray_worker
from ray._private.authentication.authentication_token_setup import (
    AUTH_MODE_ENV_VAR,
    maybe_enable_token_auth_if_token_available,
)
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationMode,
    AuthenticationTokenLoader,
    Config,
    GcsClient,
    get_authentication_mode,
)
from ray.exceptions import AuthenticationError, RayError

from outrider.cluster.engines.ray.roll import living_nodes, own_ip
from outrider.core.errors import ClusterError, InvalidInput

_log = logging.getLogger(__name__)
_print = ray_worker.print_to_stdstream

PROBE_SECONDS = 3.0
JOIN_SECONDS = 60.0
LOOK_SECONDS = 0.5
REPORT_SECONDS = 5.0
LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 compared with, never bound
AUTO_ADDRESS_FILE = Path("ray_current_cluster")

SET_BY_RAY = ("PYTHONBREAKPOINT", AUTH_MODE_ENV_VAR, "RAY_CLIENT_MODE", "RAY_USAGE_STATS_ENABLED")
"""Variables that `ray.init` sets in its process and `ray.shutdown` leaves there."""

HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 4,
}
"""A node that is gone is noticed within five seconds; one that is only slow has as long as by default."""

HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What a client of gRPC says first: the preface, and an empty frame of settings."""
FRAME_BYTES = 9
SETTINGS = 4


def connect(
    address: str | None, namespace: str, *, num_gpus: float | None, num_cpus: float | None
) -> Callable[[], None]:
    """Connect this process to Ray; how to leave it again, which does nothing if the process was connected before.

    The amounts are for a Ray of its own. `InvalidInput` if there is no Ray at the address, or none that fits.
    """
    if ray.is_initialized():
        _refuse_another(address)
        return _stay
    leave = partial(_leave, {name: os.environ.get(name) for name in SET_BY_RAY})
    source = "address" if address else "RAY_ADDRESS"
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    if where == "auto":
        where = os.environ.get("RAY_ADDRESS") or where
    if where == "local":
        _start(namespace, num_gpus, num_cpus)
        return leave
    _probe(where, source)
    try:
        _init(where, namespace)
    except (RuntimeError, ValueError, OSError, RayError) as exc:
        ray.shutdown()
        raise InvalidInput(_why_not(where, exc)) from exc
    return leave


def _stay() -> None:
    """Whoever connected this process leaves Ray."""


def _leave(before: Mapping[str, str | None]) -> None:
    ray.shutdown()
    # Ray keeps what it has read of a variable that is gone, and the next Ray may ask for no token.
    os.environ[AUTH_MODE_ENV_VAR] = before[AUTH_MODE_ENV_VAR] or "disabled"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _start(namespace: str, num_gpus: float | None, num_cpus: float | None) -> None:
    amounts = {"num_gpus": num_gpus, "num_cpus": num_cpus}
    try:
        _init("local", namespace, **amounts, include_dashboard=False, _system_config=HEALTH)
    except (RuntimeError, ValueError, OSError, RayError) as exc:
        ray.shutdown()
        raise ClusterError(f"a Ray of its own could not be started on this machine: {exc}") from exc


def await_nodes(n_nodes: int, seconds: float = JOIN_SECONDS) -> None:
    """Wait until so many nodes have joined. Ray tells nobody when one does, so this looks."""
    began_at = told_at = time.monotonic()
    while len(there := living_nodes()) < n_nodes:
        now = time.monotonic()
        if now - began_at > seconds:
            ips = ", ".join(node["NodeManagerAddress"] for node in there)
            raise InvalidInput(
                f"{n_nodes} nodes were asked for, and after {seconds:g} s Ray has {len(there)} ({ips}); start the "
                f"others with `ray start --address={ray.get_runtime_context().gcs_address}`, or ask for fewer"
            )
        if now - told_at >= REPORT_SECONDS or told_at == began_at:
            _log.info("waiting for nodes: %d of %d have joined", len(there), n_nodes)
            told_at = now
        time.sleep(LOOK_SECONDS)


def _init(where: str, namespace: str, **options: Any) -> None:
    ray_worker.print_to_stdstream = _print_apart
    with _own_signals(), _without_notices():
        ray.init(address=where, namespace=namespace, configure_logging=False, **options)


def _print_apart(data: dict[str, Any], ignore_prefix: bool) -> None:
    """Print what Ray itself reports to standard error: a program's output, which may be JSON, is its own."""
    is_err = data["is_err"] or data.get("pid") == "raylet"
    _print({**data, "is_err": is_err}, ignore_prefix)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the program's handler of SIGTERM, which `ray.init` replaces; Ray's stays where there was none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before):
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _without_notices() -> Iterator[None]:
    """Ray warns that its authentication is on, which is as it should be."""
    logger = logging.getLogger("ray._private.authentication.authentication_token_setup")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _refuse_another(address: str | None) -> None:
    """This process has a Ray already; it cannot have two."""
    here = ray.get_runtime_context().gcs_address
    if address in {None, "auto", "local", here}:
        return
    host, port = _split(str(address), "address")
    if f"{_resolved(host)}:{port}" != here:
        raise InvalidInput(
            f"this process is connected to the Ray at {here} already, and cannot also use {address}; "
            "call ray.shutdown() first, or leave out the address"
        )


def _probe(where: str, source: str) -> None:
    """See within seconds that a Ray answers there and takes our token; `ray.init` would try for more than a minute."""
    if where == "auto":
        found = _auto_address()
        if found is not None:
            _greet(*found, f"auto, which is {found[0]}:{found[1]} here")
        return
    host, port = _split(where, source)
    _greet(_resolved(host), port, where)
    _refuse_a_missing_token()
    try:
        _knock(_resolved(host), port)
    except AuthenticationError as exc:
        raise InvalidInput(
            f"the Ray at {where} does not take this process's token: it was started with another one, or "
            "RAY_AUTH_MODE differs. Set RAY_AUTH_MODE=token and the cluster's own token, by RAY_AUTH_TOKEN or in "
            "~/.ray/auth_token (`ray get-auth-token` prints it on the head node)"
        ) from exc
    except RayError as exc:
        raise InvalidInput(_nobody(where, f"what listens on {host}:{port} is something else: {exc}")) from exc


def _refuse_a_missing_token() -> None:
    """Without this check Ray ends the whole process where a token is asked for and there is none."""
    if get_authentication_mode() != AuthenticationMode.TOKEN:
        return
    if not AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        raise InvalidInput(
            "RAY_AUTH_MODE is token, and this process has no token of Ray: set RAY_AUTH_TOKEN, or copy the cluster's "
            "~/.ray/auth_token to this home folder (`ray get-auth-token` prints it on the head node)"
        )


def _knock(host: str, port: int) -> None:
    """Ask for the cluster's id. A Ray on this machine may have our token, as it does if it was started beside it."""
    try:
        GcsClient(address=f"{host}:{port}")
    except AuthenticationError:
        with _without_notices():
            if host != own_ip() or not maybe_enable_token_auth_if_token_available(warn_if_disabled=False):
                raise
        GcsClient(address=f"{host}:{port}")


def _auto_address() -> tuple[str, int] | None:
    """Where the last Ray on this machine was started, as Ray's own note says; None if there is no note."""
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray"  # noqa: S108 Ray's own place
    try:
        return _split((folder / AUTO_ADDRESS_FILE).read_text().strip(), "auto")
    except (OSError, InvalidInput):
        return None


def _greet(host: str, port: int, where: str) -> None:
    """Say hello as gRPC does, to tell a Ray from nobody, a frozen one, or a Redis on its old port."""
    if os.environ.get("RAY_USE_TLS", "0") not in {"", "0"}:
        return
    try:
        with socket.create_connection((host, port), PROBE_SECONDS) as connection:
            connection.sendall(HTTP2_GREETING)
            answer = connection.recv(FRAME_BYTES)
    except OSError as exc:
        raise InvalidInput(_nobody(where, f"{host}:{port}: {exc or 'no answer'}")) from exc
    if len(answer) < FRAME_BYTES or answer[3] != SETTINGS:
        raise InvalidInput(_nobody(where, f"what listens on {host}:{port} is something else"))


def _nobody(where: str, reason: str) -> str:
    return (
        f"no Ray answers at {where} ({reason}). Start one with `ray start --head --port=6379` and give its host and "
        "port as address= or RAY_ADDRESS; without either, a Ray of its own is started on this machine"
    )


def _why_not(where: str, error: Exception) -> str:
    text = str(error.__cause__ or error).strip()
    if "ersion mismatch" in text:
        said = " ".join(text.split())
        return f"the Ray at {where} has other versions than this process; use one environment for all. {said}"
    return f"cannot join the Ray at {where}, though it answers: {text.splitlines()[-1] if text else error!r}"


def _split(address: str, source: str) -> tuple[str, int]:
    if "://" in address:
        raise InvalidInput(
            f"{source} {address!r} is one for Ray's client, which workers cannot be launched through: run this program "
            "on a node of the cluster with its host:port as the address, or submit it with `ray job submit`"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(f"{source} {address!r} is not host:port of a Ray, such as 10.0.0.1:6379, nor auto")
    return host.strip("[]"), int(port)


def _resolved(host: str) -> str:
    """Ray listens on the address by which others reach this machine."""
    return own_ip() if host in LOOPBACK else host
