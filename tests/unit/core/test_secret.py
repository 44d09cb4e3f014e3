import copy
import dataclasses
import json
import logging
import pickle
import traceback
from io import StringIO

import msgspec
import pytest
import yaml

from outrider.core import wire
from outrider.core.attempt import Failure
from outrider.core.decoding import convert, from_json
from outrider.core.errors import PolicyError
from outrider.core.secret import MASK, Secret, bare, hidden, masked_in

CANARY = "canary-4711"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    key: Secret
    name: str = "n"


@dataclasses.dataclass(frozen=True)
class Record:
    key: Secret


def raised_with(secret: Secret) -> str:
    try:
        raise PolicyError(f"the server refused {secret} ({secret!r}) [{secret:>5}]", stage="policy.complete")
    except PolicyError as exc:
        return repr(Failure.of(exc)) + "".join(
            traceback.TracebackException.from_exception(exc, capture_locals=True).format()
        )


def logged(secret: Secret) -> str:
    stream = StringIO()
    logger = logging.getLogger("outrider.test_secret")
    logger.addHandler(logging.StreamHandler(stream))
    logger.warning("key %s %r", secret, {"key": secret})
    return stream.getvalue()


WAYS = {
    "str": str,
    "repr": repr,
    "format": lambda secret: f"{secret} {secret!s} {secret!r} {secret:>10}",
    "inside a container": lambda secret: str([secret, {"key": secret}, (secret,)]),
    "inside a struct": lambda secret: repr(Holder(key=secret)),
    "inside a dataclass": lambda secret: repr(Record(secret)) + repr(dataclasses.asdict(Record(secret))),
    "our JSON": lambda secret: wire.to_json(Holder(key=secret)),
    "our records": lambda secret: repr(wire.to_record(Holder(key=secret))),
    "json with a default": lambda secret: json.dumps({"key": secret}, default=str),
    "logging": logged,
    "failures and tracebacks": raised_with,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_secret_is_masked_wherever_it_is_printed_or_encoded(way: str):
    text = WAYS[way](Secret(CANARY))
    assert CANARY not in text
    assert MASK in text


@pytest.mark.parametrize(
    "encode",
    [
        pickle.dumps,
        json.dumps,
        yaml.safe_dump,
        yaml.dump,
        msgspec.json.encode,
        msgspec.msgpack.encode,
        msgspec.yaml.encode,
    ],
)
def test_an_encoder_that_knows_no_secrets_refuses_them(encode):
    with pytest.raises((TypeError, yaml.YAMLError)) as caught:
        encode({"key": Secret(CANARY)})
    assert CANARY not in str(caught.value)


def test_only_reveal_and_a_private_record_tell_the_value():
    holder = Holder(key=Secret(CANARY))
    assert holder.key.reveal() == CANARY
    assert wire.from_record(wire.to_private_record(holder), Holder) == holder
    assert copy.deepcopy(holder.key).reveal() == CANARY


def test_secrets_are_read_from_texts_alone():
    assert from_json(b'{"key": "k"}', Holder).key.reveal() == "k"
    assert convert({"key": Secret("k")}, Holder).key.reveal() == "k"
    with pytest.raises(msgspec.ValidationError, match=r"Expected `str`, got `int` - at `\$\.key`"):
        convert({"key": 7}, Holder)


def test_secrets_are_equal_by_value_and_kind():
    assert Secret("a") == Secret("a")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a") != "a"
    assert not Secret("")


def test_settings_named_like_secrets_are_hidden_and_come_back():
    settings = {
        "api-key": "k",
        "deep": [{"client_password": "p", "max_tokens": 7, "token": 3}],
        "name": "n",
        "eos_token": "</s>",
    }
    assert hidden(settings)["eos_token"] == "</s>"
    found = hidden(settings)
    assert CANARY not in repr(hidden({"client_password": CANARY}))
    assert found["deep"][0] == {"client_password": Secret("p"), "max_tokens": 7, "token": 3}
    assert bare(found) == settings
    assert masked_in(found) is None
    assert masked_in(hidden({"deep": [{"client_password": MASK}]}), "env") == "env.deep.0.client_password"
