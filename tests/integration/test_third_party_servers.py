"""Servers of others from the package index, in environments of their own: preflight and a run against the real thing.

What they taught is in the manners of `ModelServer`, and tested against that each time; here it is tried whether they
still have them. Their packages are downloaded, so only `make strangers` runs it.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from first_day import evaluate_three_things, lines_of, make_ten_mistakes
from outrider.testing import ModelServer
from soaking import note_strangers
from warm_outrider import run_warm

pytestmark = [pytest.mark.strangers, pytest.mark.timeout(1200)]

MAKE_MODEL = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
special = ["<s>", "</s>"]
trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
tokenizer.train_from_iterator(["the answer is 42"], trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}assistant: "
shape = dict(vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
config = LlamaConfig(**shape, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, pad_token_id=1)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
fast.save_pretrained(sys.argv[1])
"""
"""A model of random weights: nothing is downloaded, and what it says makes no sense."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return tmp_path


def installed(folder: Path, *packages: str) -> Path:
    """The programs of a fresh environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
    install = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(install, check=True, timeout=900, capture_output=True)
    return folder / "bin"


def note_versions(what: str, programs: Path, *packages: str) -> None:
    """Keep which versions the index gave, for `bench/RESULTS.md`."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    command = [programs / "python", "-c", code, *packages]
    said = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    note_strangers(what, dict(zip(packages, said.split(), strict=True)))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def served(port: int, *command: str | Path, **variables: str) -> Iterator[str]:
    """The base URL of a server that is there for the block."""
    with Path("server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
        try:
            deadline = time.monotonic() + 120
            while not answers(f"http://127.0.0.1:{port}/openapi.json"):
                assert server.poll() is None, Path("server.log").read_text()
                assert time.monotonic() < deadline, Path("server.log").read_text()
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(30)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False


def outrider(url: str, model: str, *arguments: str, **variables: str) -> tuple[int, str]:
    flags = ("--mode", "math", "--limit", "2", "--max-tokens", "12", "--base-url", url, "--model", model)
    done = run_warm("run", *flags, *arguments, seconds=120, **variables)
    return done.returncode, done.stdout + done.stderr


def first_day(url: str, model: str, *key: str, **variables: str) -> None:
    """What somebody who knows only the README does; the answers to mistakes are shown, for people to judge (`-s`)."""
    evaluate_three_things(("--base-url", url, "--model", model, *key), **variables)
    for mistake, answer in make_ten_mistakes(url, model, *key, **variables).items():
        print(f"{mistake}: {answer}")


def test_transformers_serve_is_used_though_it_cannot_list_its_models(folder: Path):
    programs = installed(folder / "venv", "torch", "transformers[serving]")
    model = str(folder / "tiny")
    subprocess.run([programs / "python", "-c", MAKE_MODEL, model], check=True, timeout=300, capture_output=True)
    port = free_port()
    command = (programs / "transformers", "serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu")
    with served(port, *command, HF_HUB_OFFLINE="1") as url:
        for flags in ((), ("--stream",), ("--logprobs",)):
            name = f"run{''.join(flags)}"
            code, said = outrider(url, model, "--name", name, *flags)
            assert code == 0, said
            assert [line["status"] for line in lines_of(name)] == ["succeeded"] * 2
        code, said = outrider(url, "no/model", "--name", "other")
        assert (code, "Does it have the model 'no/model'" in said) == (2, True), said
        code, said = outrider(url, model, "--name", "other", "--top-k", "5")
        assert (code, "Unexpected fields in the request: {'top_k'}" in said) == (2, True), said
        assert not Path("results/other").exists()
        first_day(url, model)
    note_versions("transformers serve", programs, "transformers", "torch")


async def test_a_litellm_proxy_is_used_and_a_wrong_model_or_key_behind_it_is_told(folder: Path):
    programs = await asyncio.to_thread(installed, folder / "venv", "litellm[proxy]")
    async with ModelServer("\\boxed{5}") as server:
        model = {"model": "openai/test-model", "api_base": server.base_url, "api_key": "none"}
        settings = {
            "model_list": [{"model_name": "behind", "litellm_params": model}],
            "general_settings": {"master_key": "sk-proxy"},
        }
        Path("proxy.yaml").write_text(json.dumps(settings))
        await asyncio.to_thread(check_proxy, programs)
    await asyncio.to_thread(note_versions, "LiteLLM proxy", programs, "litellm")


def check_proxy(programs: Path) -> None:
    port = free_port()
    command = (programs / "litellm", "--config", "proxy.yaml", "--host", "127.0.0.1", "--port", str(port))
    with served(port, *command, LITELLM_LOCAL_MODEL_COST_MAP="True") as url:
        key = {"PROXY_KEY": "sk-proxy", "WRONG_KEY": "sk-wrong"}
        flags = ("--api-key-env", "PROXY_KEY", "--extra-body", "min_p=0.1", "--top-k", "5")
        code, said = outrider(url, "behind", *flags, "--name", "proxied", **key)
        assert code == 0, said
        assert [line["output"] for line in lines_of("proxied")] == ["5", "5"]
        for model, variable, says in (
            ("behnd", "PROXY_KEY", "has no model 'behnd'"),
            ("behind", "WRONG_KEY", "The key is read from the environment variable WRONG_KEY"),
        ):
            code, said = outrider(url, model, "--api-key-env", variable, "--name", "other", **key)
            assert (code, says in said) == (2, True), said
        assert not Path("results/other").exists()
        first_day(url, "behind", "--api-key-env", "PROXY_KEY", **key)
