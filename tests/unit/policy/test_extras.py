"""What is added to requests: headers and fields as they are given, secrets from the environment alone."""

from typing import Any

import pytest

from outrider.core.errors import InvalidInput
from outrider.policy.extras import extras_of, without_secrets
from outrider.policy.spec import PolicySpec, further_policy


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", " sk-mine ")
    monkeypatch.delenv("NO_KEY", raising=False)


def spec(**fields: Any) -> PolicySpec:
    return PolicySpec(model="m", **fields)


def test_secrets_are_filled_in_from_the_environment_at_any_depth():
    given = spec(
        headers={"X-Api-Key": "env:MY_KEY", "X-Title": "a test"},
        extra_body={"provider": {"api_key": "env:MY_KEY", "order": ["a", "env:MY_KEY"]}, "min_p": 0.1},
    )
    extras = extras_of(given)
    assert extras.headers == {"X-Api-Key": "sk-mine", "X-Title": "a test"}
    assert extras.body == {"provider": {"api_key": "sk-mine", "order": ["a", "sk-mine"]}, "min_p": 0.1}
    assert {secret.reveal() for secret in extras.secrets} == {"sk-mine"}
    assert "sk-mine" not in repr(given)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"headers": {"Authorization": "Bearer sk-1"}}, "the header 'Authorization' looks like a secret; write Auth"),
        ({"headers": {"x-api-key": "sk-1"}}, "looks like a secret"),
        ({"headers": {"Ocp-Apim-Subscription-Key": "1"}}, "looks like a secret"),
        ({"headers": {"X-Token": "1"}}, "looks like a secret"),
        ({"headers": {"Cookie": "a=b"}}, "looks like a secret"),
        ({"headers": {"Content-Type": "text/html"}}, "is set by the client itself"),
        ({"headers": {"a b": "1"}}, "'a b' cannot be the name of a header"),
        ({"headers": {"X": "a\r\nY: b"}}, "characters that a header cannot have"),
        ({"headers": {"X-Key": "env:NO_KEY"}}, "names the environment variable 'NO_KEY', which is not set"),
        ({"extra_body": {"a": [{"api_key": "sk-1"}]}}, r"extra_body.a\[0\].api_key looks like a secret"),
        ({"extra_body": {"messages": []}}, "extra_body sets 'messages'"),
        ({"extra_body": {"model": "other"}}, "extra_body sets 'model'"),
    ],
)
def test_what_cannot_be_sent_or_would_be_written_down_is_refused(fields: dict[str, Any], says: str):
    with pytest.raises(InvalidInput, match=says) as caught:
        extras_of(spec(**fields))
    assert "sk-1" not in str(caught.value)


def test_secrets_stay_with_the_servers_that_they_were_given_for():
    own = spec(
        base_urls=("http://own/v1",),
        headers={"X-Api-Key": "env:MY_KEY", "X-Title": "t"},
        extra_body={"api_key": "env:MY_KEY", "min_p": 0.1},
    )
    elsewhere = without_secrets(own)
    assert (elsewhere.headers, elsewhere.extra_body) == ({"X-Title": "t"}, {"min_p": 0.1})
    beside = further_policy(own, "other", headers={"X-Title": "u"})
    assert beside.headers == {"X-Api-Key": "env:MY_KEY", "X-Title": "u"}
    away = further_policy(own, "other", base_urls=("http://other/v1",), extra_body={"min_p": 0.2})
    assert (away.headers, away.extra_body) == ({}, {"min_p": 0.2})


def test_a_spec_with_mappings_can_be_a_key_still():
    assert {spec(headers={"X": "1"}): 1}[spec(headers={"X": "1"})] == 1
    assert spec(headers={"X": "1"}) != spec(headers={"X": "2"})
