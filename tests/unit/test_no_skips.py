"""A skip is a failure where everything can run, whether of a test or of a whole file."""

import pytest

import no_skips

OPTIONS = ("-p", "no_skips", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function")
SKIPS = {
    "a test by a mark": "import pytest\n@pytest.mark.skip\ndef test_a(): pass",
    "a test by its condition": "import pytest\n@pytest.mark.skipif(True, reason='why')\ndef test_a(): pass",
    "a test as it runs": "import pytest\ndef test_a(): pytest.skip('why')",
    "a test by its fixture": "import pytest\n@pytest.fixture\ndef f(): pytest.skip('why')\ndef test_a(f): pass",
    "a file for want of a library": "import pytest\npytest.importorskip('no_such_library')\ndef test_a(): pass",
    "a file by its own choice": "import pytest\npytest.skip('why', allow_module_level=True)\ndef test_a(): pass",
}


@pytest.fixture(params=[True, False])
def everything_runs_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(no_skips, "EVERYTHING_RUNS_HERE", request.param)
    return bool(request.param)


@pytest.mark.parametrize("kind", SKIPS)
def test_a_skip_fails_where_nothing_may_be_skipped(
    kind: str, everything_runs_here: bool, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(SKIPS[kind])
    result = pytester.runpytest_inprocess(*OPTIONS)
    outcomes = result.parseoutcomes()
    assert "skipped" not in outcomes if everything_runs_here else outcomes["skipped"] == 1
    assert (result.ret != pytest.ExitCode.OK) is (everything_runs_here or kind.startswith("a file"))
    if everything_runs_here:
        result.stdout.fnmatch_lines(["*was skipped on a machine where nothing may be*"])


def test_an_expected_failure_is_no_skip(everything_runs_here: bool, pytester: pytest.Pytester) -> None:
    del everything_runs_here
    pytester.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_a(): assert False")
    pytester.runpytest_inprocess(*OPTIONS).assert_outcomes(xfailed=1)
