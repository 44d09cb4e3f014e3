import pickle

import pytest

from outrider.core.errors import InvalidInput
from outrider.store import StoreUrl, open_store

PW = "canary"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:canary@host:5/db?x=1", "postgresql://me:***@host:5/db?x=1"),
        ("postgresql://me:a:canary@c@host:5/db?x=1", "postgresql://me:***@host:5/db?x=1"),
        ("postgresql://me@host/db?password=canary&x=1", "postgresql://me@host/db?password=***&x=1"),
        ("postgresql://me@host/db?sslpassword=canary", "postgresql://me@host/db?sslpassword=***"),
        ("postgresql://me@host/db?PassWord=canary", "postgresql://me@host/db?PassWord=***"),
        ("postgresql://me@host/db?p%61ssword=canary", "postgresql://me@host/db?p%61ssword=***"),
        ("postgresql://me:x@host/db?password=canary", "postgresql://me:***@host/db?password=***"),
        ("postgresql://me:can?canary@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:can#canary/x@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:[canary@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:c\nanary canary@host/db", "postgresql://me:***@host/db"),
        ("postgres:me:canary@host", "postgres:***@host"),
        ("http://hub:80?token=canary", "http://hub:80?token=***"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("memory://", "memory://"),
    ],
)
def test_a_shown_url_has_all_but_the_password(url: str, shown: str):
    assert StoreUrl(url).shown == str(StoreUrl(url)) == shown
    assert PW not in repr(StoreUrl(url))
    assert StoreUrl(url).reveal() == url


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("postgresql://me:canary@host:5/db?x=1", "postgresql://me@host:5/db?x=1"),
        ("postgresql://me:canary@/db?host=/run&password=canary", "postgresql://me@/db?host=/run"),
        ("postgresql://me@host/db?sslpassword=canary", "postgresql://me@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:///a:b@c.db?synchronous=full", "sqlite:///a:b@c.db?synchronous=full"),
    ],
)
def test_what_is_kept_of_a_url_opens_the_same_store_with_a_password_from_elsewhere(url: str, kept: str):
    assert StoreUrl(url).without_password == kept
    assert StoreUrl(url).has_password == (url != kept)


def test_the_password_of_a_store_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTRIDER_STORE", "postgresql://me:canary@host/db")
    assert StoreUrl("postgresql://me@host/db").completed().reveal() == "postgresql://me:canary@host/db"
    assert StoreUrl("postgresql://me@other/db").completed().reveal() == "postgresql://me@other/db"
    assert StoreUrl("postgresql://me:own@host/db").completed().reveal() == "postgresql://me:own@host/db"
    monkeypatch.delenv("OUTRIDER_STORE")
    assert StoreUrl("postgresql://me@host/db").completed().reveal() == "postgresql://me@host/db"


@pytest.mark.parametrize(
    "url", ["postgresql://me:[canary@host/db", "mysql://me:canary@host/db", "postgresql://me:c\u2100canary@h/db"]
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str):
    with pytest.raises(InvalidInput) as caught:
        open_store(url)
    assert PW not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_store_url_is_not_pickled():
    with pytest.raises(TypeError, match="reveal"):
        pickle.dumps(StoreUrl("postgresql://me:canary@host/db"))
