"""The metrics: what each takes for right, what in part, and that odd results are worth nothing but never a crash."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.env.osworld.getters import GotFile
from outrider.env.osworld.metrics import METRICS, Expected


def file(text: str) -> GotFile:
    return GotFile(name="f", data=text.encode())


def score(name: str, result: Any, expected: Any, **options: Any) -> float:
    metric = METRICS[name]
    rules = expected if isinstance(metric.expects, Expected) else msgspec.convert(expected, metric.expects)
    return metric.score(result, rules, msgspec.convert(options, metric.options))


TREE = """
<desktop-frame xmlns:st="https://accessibility.ubuntu.example.org/ns/state">
  <application name="Editor"><frame name="notes.txt" st:active="true"><text>hello world</text></frame></application>
</desktop-frame>
"""


@pytest.mark.parametrize(
    ("name", "result", "expected", "value"),
    [
        ("exact_match", "on\n", {"expected": "on\n"}, 1),
        ("exact_match", "on", {"expected": "on\n"}, 0),
        ("exact_match", {"width": 3, "height": 4}, {"expected": {"height": 4, "width": 3}}, 1),
        ("exact_match", None, {"expected": "on"}, 0),
        ("match_in_list", "b", {"expected": ["a", "b"]}, 1),
        ("match_in_list", "c", {"expected": ["a", "b"]}, 0),
        ("is_in_list", ["a", "b"], {"expected": "a"}, 1),
        ("is_in_list", "cab", {"expected": "a"}, 1),
        ("is_in_list", None, {"expected": "a"}, 0),
        ("check_include_exclude", "a b", {"include": ["a", "b"], "exclude": ["c"]}, 1),
        ("check_include_exclude", "a c", {"include": ["a"], "exclude": ["c"]}, 0),
        ("check_include_exclude", file("a"), {"include": ["a"]}, 1),
        ("check_include_exclude", None, {"exclude": ["c"]}, 0),
        ("fuzzy_match", "abcd", {"expected": "abxd"}, 0.75),
        ("fuzzy_match", None, {"expected": "a"}, 0),
        ("file_contains", file("one two"), {"expected": ["one", "two"]}, 1),
        ("file_contains", file("one"), {"expected": ["one", "two"]}, 0),
        ("file_contains", None, {"expected": ["one"]}, 0),
        ("check_list", file("a1\nb2\n"), {"expect": ["^a.$", "2"], "unexpect": ["c"]}, 1),
        ("check_list", file("a1\nb2\n"), {"expect": ["^a.$", "3"]}, 0),
        ("check_list", file("a1\nb2\n"), {"unexpect": ["^b"]}, 0),
        ("check_list", None, {"expect": []}, 0),
        (
            "check_json",
            file('{"a": {"b": [1, "x"]}}'),
            {"expect": [{"key": ["a", "b", 0], "method": "eq", "ref": 1}]},
            1,
        ),
        ("check_json", file('{"a": "Hello"}'), {"expect": [{"key": ["a"], "method": "re.I", "ref": "^hello"}]}, 1),
        ("check_json", file('{"a": 1.05}'), {"expect": [{"key": ["a"], "method": "approx:0.1", "ref": 1}]}, 1),
        ("check_json", file('{"a": 2}'), {"expect": [{"key": ["a"], "method": "range.te", "ref": [0, 2]}]}, 1),
        ("check_json", file('{"a": 0}'), {"expect": [{"key": ["a"], "method": "range.te", "ref": [0, 2]}]}, 0),
        (
            "check_json",
            file('{"a": "y,x"}'),
            {"expect": [{"key": ["a"], "method": "str_set_eq", "ref": ["x", "y"]}]},
            1,
        ),
        (
            "check_json",
            file('{"a": "y,x"}'),
            {"expect": [{"key": ["a"], "method": "str_list_eq", "ref": ["x", "y"]}]},
            0,
        ),
        ("check_json", file('{"a": "text"}'), {"expect": [{"key": ["a"], "method": "lt", "ref": 3}]}, 0),
        ("check_json", file('{"a": 1}'), {"expect": [{"key": ["b"], "method": "eq", "ref": 1}]}, 0),
        ("check_json", file('{"a": 1}'), {"unexpect": [{"key": ["a"], "method": "eq", "ref": 1}]}, 0),
        ("check_json", file('{"a": 1}'), {"unexpect": [{"key": ["b"], "method": "eq", "ref": 1}]}, 1),
        ("check_json", file("{"), {"expect": []}, 0),
        ("check_direct_json_object", "{'a': 1, 'b': 2}", {"expected": {"a": 1}}, 1),
        ("check_direct_json_object", {"a": [2, 1]}, {"expected": {"a": [1, 2]}}, 0),
        ("check_direct_json_object", {"a": [2, 1]}, {"expected": {"a": [1, 2], "ignore_list_order": True}}, 1),
        ("check_direct_json_object", {"a": "x y"}, {"expected": {"a": "x"}, "expect_in_result": True}, 1),
        ("check_direct_json_object", {"a": "y"}, {"expected": {"a": ["x", "y"]}, "expect_in_result": True}, 1),
        ("check_direct_json_object", {}, {"expected": {"a": "x"}, "expect_in_result": True}, 0),
        ("check_direct_json_object", "not json", {"expected": {}}, 0),
        ("compare_text_file", file("a\r\nb"), file("a\nb"), 1),
        ("compare_text_file", file("a"), file("b"), 0),
        ("compare_text_file", None, file("b"), 0),
        ("compare_text_file", file("a"), None, 0),
        ("compare_csv", file("a,b\n1,2\n"), file("a,b\r\n1,2"), 1),
        ("compare_csv", file("a"), [file("b"), file("a")], 1),
        ("compare_csv", None, None, 0),
        ("diff_text_file", file("a\nb\n"), file("a\nc\n"), 0.5),
        ("diff_text_file", None, file("a"), 0),
        ("literal_match", 3, "3", 1),
        ("literal_match", "a", "A", 0),
        ("check_accessibility_tree", TREE, [{"xpath": "//frame[@name='notes.txt']"}], 1),
        ("check_accessibility_tree", TREE, [{"xpath": "//frame[@st:active='true']"}], 1),
        ("check_accessibility_tree", TREE, [{"xpath": "/desktop-frame/application"}], 1),
        ("check_accessibility_tree", TREE, [{"xpath": "//frame[@name='other']"}], 0),
        ("check_accessibility_tree", TREE, [{"selectors": ["application[name=Editor] > frame text"]}], 1),
        ("check_accessibility_tree", TREE, [{"selectors": ['frame[st|active="true"]']}], 1),
        ("check_accessibility_tree", TREE, [{"selectors": ["desktop-frame > frame"]}], 0),
        ("check_accessibility_tree", TREE, [{"selectors": ["no", "text"], "text": "hello world"}], 1),
        ("check_accessibility_tree", TREE, [{"selectors": ["text"], "text": "hello"}], 0),
        ("check_accessibility_tree", TREE, [{"selectors": ["text"], "text": "hello wor", "exact": False}], 0.9),
        ("check_accessibility_tree", "<a", [{"xpath": "//a"}], 0),
        ("check_accessibility_tree", None, [{"xpath": "//a"}], 0),
    ],
)
def test_a_metric_scores_as_it_should(name: str, result: Any, expected: Any, value: float):
    assert score(name, result, expected) == pytest.approx(value)


def test_options_say_what_makes_no_difference():
    assert score("compare_text_file", file(" a \n\n B"), file("a b"), ignore_blanks=True, ignore_case=True) == 1
    assert score("compare_csv", file(" A \n"), file("a"), strict=False, ignore_case=True) == 1
    assert score("literal_match", "A", "a", ignore_case=True) == 1
    assert score("literal_match", ["A", 1], ["a", "1"], type="list", ignore_case=True) == 1
    assert score("literal_match", "A", ["A"], type="list") == 0
    rules = {"expect": [{"key": ["a"], "method": "eq", "ref": 1}]}
    assert score("check_json", file("a: 1"), rules, is_yaml=True) == 1


SAMPLES: dict[str, Any] = {
    "check_accessibility_tree": [{"xpath": "//a"}],
    "check_direct_json_object": {"expected": {"a": ["x"]}, "expect_in_result": True},
    "check_include_exclude": {"include": ["a"]},
    "check_json": {"expect": [{"key": ["a"], "method": "lt", "ref": 1}]},
    "check_list": {"expect": ["a"]},
    "file_contains": {"expected": ["a"]},
    "fuzzy_match": {"expected": "a"},
    "exact_match": {"expected": "a"},
    "is_in_list": {"expected": "a"},
    "match_in_list": {"expected": ["a"]},
}


@given(
    st.sampled_from(sorted(METRICS)),
    st.none()
    | st.text()
    | st.binary().map(lambda data: GotFile(name="f", data=data))
    | st.lists(st.integers())
    | st.just({}),
)
def test_no_result_is_too_odd_for_a_metric(name: str, result: Any):
    assert 0 <= score(name, result, SAMPLES.get(name, file("a"))) <= 1
