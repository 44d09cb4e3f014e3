"""Secrets that others could read are warned of; those that could reach a server they are not for are refused."""

from typing import Any

import pytest

from outrider.core.errors import InvalidInput
from outrider.policy.openai.exposure import check_one_origin
from outrider.policy.opening import exposed_secrets, open_policy
from outrider.policy.spec import PolicySpec

SAFE = ("https://far/v1", "http://localhost:8000/v1", "http://127.0.0.2/v1", "http://[::1]:8000/v1")
OPEN = ("http://far:8000/v1", "http://10.0.0.7/v1", "http://localhost.evil/v1")
SECRETS: list[tuple[dict[str, Any], str]] = [
    ({"api_key_env": ("MINE",)}, "the key in MINE goes to "),
    ({"headers": {"X-Api-Key": "env:MINE", "X-Title": "t"}}, "the header 'X-Api-Key' with the secret in MINE goes to "),
    ({"extra_body": {"a": [{"b": "env:MINE"}]}}, "extra_body.a[0].b with the secret in MINE goes to "),
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MINE", "sk-1")


def spec(*urls: str, **fields: Any) -> PolicySpec:
    return PolicySpec(model="m", base_urls=urls, **fields)


@pytest.mark.parametrize(("fields", "says"), SECRETS)
def test_a_secret_that_others_could_read_is_warned_of(fields: dict[str, Any], says: str):
    for url in SAFE:
        assert exposed_secrets(spec(url, **fields)) == []
    for url in OPEN:
        (warning,) = exposed_secrets(spec(url, **fields))
        assert f"{says}{url.removesuffix('/v1')} unencrypted" in warning
        assert "sk-1" not in warning


def test_what_sends_no_secret_is_not_warned_of():
    assert exposed_secrets(spec(OPEN[0], headers={"X-Title": "t"}, extra_body={"min_p": 0.1})) == []
    assert exposed_secrets(PolicySpec(model="builtin:solver", base_urls=OPEN[:1], api_key_env=("MINE",))) == []


@pytest.mark.parametrize("fields", [fields for fields, _ in SECRETS[1:]], ids=["header", "field"])
async def test_a_secret_in_a_header_or_field_is_for_the_servers_of_one_origin(fields: dict[str, Any]):
    two = spec("https://own/v1", "https://other/v1", **fields)
    with pytest.raises(InvalidInput, match=r"all servers of this policy: https://own, https://other\. ") as told:
        await open_policy(two)
    assert "sk-1" not in str(told.value)
    check_one_origin(spec("https://own/v1", "https://own/v2", **fields))
    check_one_origin(spec("https://own/v1", "https://other/v1", headers={"X-Title": "t"}))
