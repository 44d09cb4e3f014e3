"""Settings of a run: defaults, a file, flags over it, and what is refused."""

from pathlib import Path

import pytest

from outrider.cli.run_config import RunConfig, env_setting, read_config
from outrider.cli.run_setup import episode_spec
from outrider.core.errors import InvalidInput
from outrider.policy.spec import Budget


def test_flags_go_over_the_file_and_the_file_over_the_defaults(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("mode: math\nnum-rollouts: 7\nmax_turns: 3\nenv: {scorer: f1, calculator: false}\n")

    config = read_config(str(file), {"max_turns": 9, "env": {"scorer": "math"}})

    assert (config.mode, config.num_rollouts, config.max_turns) == ("math", 7, 9)
    assert config.env == {"scorer": "math", "calculator": False}
    assert config.model == RunConfig().model


def test_an_empty_file_holds_no_settings(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("# nothing yet\n")
    assert read_config(str(tmp_path / "run.yaml"), {}) == RunConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_rolouts: 3", "did you mean num_rollouts?"),
        ("num_rollouts: many", "Expected `int`, got `str` - at `$.num_rollouts`"),
        ("- 1\n- 2", "write settings as `name: value`"),
        ("mode: [unclosed", "is not YAML"),
        ("env: 3", "env must hold settings"),
        ("num_rollouts: 0", "num_rollouts is 0; give 1 or more"),
        ("limit: 0", "limit is 0; give 1 or more"),
        ("max_retries: -1", "max_retries is -1"),
        ("silence_seconds: 0", "silence_seconds is 0"),
        ("budget_money: 5", "needs prompt_price and completion_price"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(tmp_path: Path, text: str, message: str):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as error:
        read_config(str(file), {})
    assert message in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"cannot read .*nowhere\.yaml: No such file"):
        read_config(str(tmp_path / "nowhere.yaml"), {})


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("size=8", ("size", 8)),
        ("hosts=[a, b]", ("hosts", ["a", "b"])),
        ("name=x=y", ("name", "x=y")),
        ("on=", ("on", None)),
    ],
)
def test_settings_of_the_environment_are_read_as_yaml(text: str, setting: tuple[str, object]):
    assert env_setting(text) == setting


@pytest.mark.parametrize("text", ["size", "=8", "a=[1"])
def test_a_setting_of_the_environment_that_is_none_is_refused(text: str):
    with pytest.raises(InvalidInput, match="--env"):
        env_setting(text)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 120.0),
        ({"timeout": 60.0}, 30.0),
        ({"timeout": 900.0}, 120.0),
        ({"timeout": 60.0, "silence_seconds": 50}, 50),
    ],
)
def test_silence_is_borne_for_half_of_the_timeout_unless_it_is_given(changes: dict[str, float], seconds: float):
    config = read_config(None, {"mode": "math", **changes})
    assert episode_spec(config, "math", Budget()).policy.silence_seconds == seconds
