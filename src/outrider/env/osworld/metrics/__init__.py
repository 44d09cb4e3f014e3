"""The metrics of OSWorld's evaluators: how far a result is what was expected, from 0 to 1."""

from collections.abc import Mapping

from outrider.env.osworld.metrics import files, structured, tree, values
from outrider.env.osworld.metrics.metric import ANYTHING, FILE, Expected, Metric, NoOptions

METRICS: Mapping[str, Metric] = {
    "check_accessibility_tree": Metric(tree.check_accessibility_tree, tuple[tree.TreeRule, ...], tree.TreeOptions),
    "check_direct_json_object": Metric(structured.check_direct_json_object, structured.JsonObjectRules),
    "check_include_exclude": Metric(values.check_include_exclude, values.IncludeExcludeRules),
    "check_json": Metric(structured.check_json, structured.JsonRules, structured.JsonOptions),
    "check_list": Metric(files.check_list, files.ListRules),
    "compare_csv": Metric(files.compare_csv, FILE, files.CsvOptions),
    "compare_text_file": Metric(files.compare_text_file, FILE, files.TextOptions),
    "diff_text_file": Metric(files.diff_text_file, FILE),
    "exact_match": Metric(values.exact_match, values.ValueRules),
    "file_contains": Metric(files.file_contains, files.ContainsRules),
    "fuzzy_match": Metric(values.fuzzy_match, values.TextRules),
    "is_in_list": Metric(values.is_in_list, values.ValueRules),
    "literal_match": Metric(values.literal_match, ANYTHING, values.LiteralOptions),
    "match_in_list": Metric(values.match_in_list, values.AmongRules),
}
"""The metrics that are understood. `infeasible` is none: it looks at the last action."""

__all__ = ["ANYTHING", "FILE", "METRICS", "Expected", "Metric", "NoOptions"]
