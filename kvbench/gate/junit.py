"""A gate's report as JUnit XML: a suite for each run, a case for each metric.

A regression is a failure, an inconclusive metric is skipped, a changed one passes and says what it was.
source: the de-facto schema that Jenkins and GitLab read (testsuites / testsuite / testcase / failure, skipped).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from .judge import REGRESSION, STALE, UNCERTAIN, Outcome, Report
from .table import comparison_cells


def junit(report: Report) -> str:
    """The whole document. Times are 0: what a case measured is not how long it took."""
    root = ET.Element("testsuites", _counts(report.outcomes, name="kvbench gate"))
    for group in dict.fromkeys(one.group for one in report.outcomes):
        own = tuple(one for one in report.outcomes if one.group == group)
        suite = ET.SubElement(root, "testsuite", _counts(own, name=group))
        for one in own:
            _case(suite, one)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, one: Outcome) -> None:
    case = ET.SubElement(suite, "testcase", classname=one.group, name=one.compared.metric, time="0")
    _, unit, first, second, ratio, interval, _ = comparison_cells(one.compared)
    told = f"baseline {first} {unit}, candidate {second} {unit}, ratio {ratio}, 95 % {interval}, limit {one.limit:g}"
    if one.outcome == REGRESSION:
        ET.SubElement(case, "failure", message=told, type=REGRESSION).text = told
    elif one.outcome == UNCERTAIN:
        ET.SubElement(case, "skipped", message=f"inconclusive: {told}")
    elif one.outcome == STALE:
        ET.SubElement(case, "system-out").text = f"baseline stale: {told}"


def _counts(outcomes: tuple[Outcome, ...], name: str) -> dict[str, str]:
    kinds = [one.outcome for one in outcomes]
    return {
        "name": name,
        "tests": str(len(kinds)),
        "failures": str(kinds.count(REGRESSION)),
        "errors": "0",
        "skipped": str(kinds.count(UNCERTAIN)),
        "time": "0",
    }
