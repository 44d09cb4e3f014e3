"""Where the servers are, from the spec and the environment."""

import pytest
from msgspec.structs import replace
from yarl import URL

from outrider.core.errors import InvalidInput
from outrider.policy.openai.address import base_urls, keys_of, moved
from outrider.policy.openai.transport import proxy_for
from outrider.policy.spec import PolicySpec


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def urls(*given):
    return [str(url) for url in base_urls(PolicySpec(model="m", base_urls=given))]


def test_the_spec_goes_before_the_environment_and_that_before_the_public_address(monkeypatch):
    assert urls() == ["https://api.openai.com/v1"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a/v1, http://b:8000/v1/,http://a/v1")
    assert urls() == ["http://a/v1", "http://b:8000/v1"]
    assert urls("http://c/v1") == ["http://c/v1"]


@pytest.mark.parametrize("text", ["localhost:8000/v1", "ftp://host/v1", "http://", "/v1", "http://host:port/v1"])
def test_what_is_no_address_is_refused_and_pointed_at(text):
    with pytest.raises(InvalidInput, match="base URL"):
        urls(text)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(InvalidInput, match="leave out the user and password") as caught:
        urls("http://me:hunter2@host/v1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["api-key", "api_key", "key", "access_token", "Password", "sig"])
def test_a_key_in_an_address_is_refused_and_not_repeated(name):
    with pytest.raises(InvalidInput, match=f"leave out {name}; a key goes in an environment variable") as caught:
        urls(f"http://host/v1?api-version=7&{name}=hunter2")
    assert "hunter2" not in str(caught.value)


def keys(*servers, **fields):
    """The key that each server gets."""
    found = keys_of(PolicySpec(model="m", base_urls=servers, **fields))
    return {str(origin): key.reveal() for origin, key in found.items()}


def test_the_key_comes_from_the_variable_the_spec_names(monkeypatch):
    monkeypatch.setenv("MY_KEY", " sk-1\n")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    assert keys("http://localhost:8000/v1", api_key_env=("MY_KEY",)) == {"http://localhost:8000": "sk-1"}
    assert keys("http://localhost:8000/v1", api_key_env=("none",)) == {}
    with pytest.raises(InvalidInput, match="OTHER is not set, and api_key_env names it"):
        keys("http://localhost:8000/v1", api_key_env=("OTHER",))


def test_several_servers_share_a_key_or_have_one_each(monkeypatch):
    monkeypatch.setenv("A", "sk-a")
    monkeypatch.setenv("B", "sk-b")
    two = ("http://a/v1", "https://b/v1")
    assert keys(*two, api_key_env=("A",)) == {"http://a": "sk-a", "https://b": "sk-a"}
    assert keys(*two, api_key_env=("A", "B")) == {"http://a": "sk-a", "https://b": "sk-b"}
    assert keys(*two, api_key_env=("none", "B")) == {"https://b": "sk-b"}
    with pytest.raises(InvalidInput, match="names 3 variables for 2 servers"):
        keys(*two, api_key_env=("A", "B", "A"))
    with pytest.raises(InvalidInput, match="names both A and B for http://a"):
        keys("http://a/v1", "http://a/v2", api_key_env=("A", "B"))


def test_the_usual_key_goes_to_its_own_provider_or_to_the_only_server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert keys() == {"https://api.openai.com": "sk-1"}
    assert keys("http://one/v1") == {"http://one": "sk-1"}
    assert keys("https://api.openai.com/v1", takes_default_key=False) == {"https://api.openai.com": "sk-1"}
    monkeypatch.setenv("OPENAI_BASE_URL", "http://named/v1")
    assert keys() == {"http://named": "sk-1"}


@pytest.mark.parametrize(
    ("servers", "takes_default_key"),
    [
        (("http://a/v1", "http://b/v1"), True),
        (("https://api.openai.com/v1", "http://b/v1"), True),
        (("http://api.openai.com/v1", "https://api.openai.com/v1"), True),
        (("http://judge/v1",), False),
    ],
)
def test_where_it_is_not_clear_whose_the_usual_key_is_one_must_be_named(servers, takes_default_key, monkeypatch):
    fields = {"takes_default_key": takes_default_key}
    assert keys(*servers, **fields) == {}, "nothing has to be named where no key is set"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with pytest.raises(InvalidInput, match=r"is the key in OPENAI_API_KEY for http://.*--api-key-env NAME.*'none'"):
        keys(*servers, **fields)
    assert keys(*servers, api_key_env=("none",), **fields) == {}
    assert set(keys(*servers, api_key_env=("OPENAI_API_KEY",), **fields).values()) == {"sk-1"}


def test_a_key_does_not_follow_a_policy_to_a_server_that_nobody_named(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("MINE", "sk-mine")
    own = PolicySpec(model="m", base_urls=("http://own/v1",))

    def published(own, *urls):
        found = keys_of(moved(own, model="next", urls=urls))
        return {str(origin): key.reveal() for origin, key in found.items()}

    assert published(own, "http://evil/v1") == {}
    assert published(own, "http://evil/v1", "http://own/v2") == {"http://own": "sk-1"}
    assert published(own, "https://api.openai.com/v1") == {"https://api.openai.com": "sk-1"}
    both = replace(own, base_urls=("http://own/v1", "http://other/v1"), api_key_env=("MINE", "none"))
    assert published(both, "http://other/v1", "http://own/v1", "http://evil/v1") == {"http://own": "sk-mine"}
    assert published(replace(own, api_key_env=("MINE",)), "http://evil/v1") == {"http://evil": "sk-mine"}
    assert moved(own, model="next", urls=own.base_urls) == replace(own, model="next")
    assert published(PolicySpec(model="builtin:random"), "http://evil/v1") == {}
    secret = replace(own, headers={"X-Api-Key": "env:MINE", "X-Title": "t"})
    assert moved(secret, model="next", urls=("http://own/v2",)).headers == secret.headers
    assert moved(secret, model="next", urls=("http://own/v2", "http://evil/v1")).headers == {"X-Title": "t"}


def test_the_public_server_is_not_asked_without_a_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY is not set"):
        keys_of(PolicySpec(model="m"))


def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\nX: 2")
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY") as caught:
        keys_of(PolicySpec(model="m"))
    assert "sk-1" not in str(caught.value)


def test_proxies_of_the_environment_are_used_but_not_for_this_machine(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_for(URL("https://api.openai.com/v1")) == "http://proxy:3128"
    assert proxy_for(URL("https://inside.example/v1")) is None
    assert proxy_for(URL("http://127.0.0.1:8000/v1")) is None
