"""A gate's report as JUnit XML: a suite for each run, a case for each metric that is judged.

A regression is a failure, a metric without samples an error, an inconclusive one is skipped, a changed one passes and
says what it was. What is not judged stands in the suite's output. A gate that could not compare is one error.
source: the de-facto schema that Jenkins and GitLab read (testsuites / testsuite / testcase / failure, error, skipped).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from .judge import REGRESSION, STALE, UNCERTAIN, UNJUDGED, UNMEASURED, Outcome, Report
from .table import comparison_cells, limit

_NAME = "kvbench gate"

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """The whole document. Times are 0: what a case measured is not how long it took."""
    if report.refusal:
        return _refused(report.refusal)
    root = ET.Element("testsuites", _counts(report.judged, name=_NAME))
    for group in dict.fromkeys(one.group for one in report.outcomes):
        own = [one for one in report.outcomes if one.group == group]
        judged = [one for one in own if one.outcome != UNJUDGED]
        suite = ET.SubElement(root, "testsuite", _counts(judged, name=group))
        for one in judged:
            _case(suite, one)
        beside = [f"not judged: {x.compared.metric}: {_told(x)}" for x in own if x.outcome == UNJUDGED and x.changed]
        if beside:
            ET.SubElement(suite, "system-out").text = "\n".join(beside)
    return _text(root)


def _refused(reason: str) -> str:
    counts = {"name": _NAME, "tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": "0"}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", counts)
    case = ET.SubElement(suite, "testcase", classname=_NAME, name="comparison", time="0")
    ET.SubElement(case, "error", message=reason, type="no verdict").text = reason
    return _text(root)


def _text(root: ET.Element) -> str:
    ET.indent(root)
    return _NOT_XML.sub("\ufffd", ET.tostring(root, encoding="unicode", xml_declaration=True)) + "\n"


def _case(suite: ET.Element, one: Outcome) -> None:
    case = ET.SubElement(suite, "testcase", classname=one.group, name=one.compared.metric, time="0")
    told = f"{_told(one)}, limit {limit(one)}"
    if one.outcome == REGRESSION:
        ET.SubElement(case, "failure", message=told, type=REGRESSION).text = told
    elif one.outcome == UNMEASURED:
        ET.SubElement(case, "error", message=one.reason, type=UNMEASURED).text = one.reason
    elif one.outcome == UNCERTAIN:
        ET.SubElement(case, "skipped", message=f"inconclusive: {told}")
    elif one.outcome == STALE:
        ET.SubElement(case, "system-out").text = f"baseline stale: {told}"


def _told(one: Outcome) -> str:
    _, unit, baseline, candidate, ratio, interval, _ = comparison_cells(one.compared)
    return f"baseline {baseline} {unit}, candidate {candidate} {unit}, ratio {ratio}, 95 % {interval}"


def _counts(outcomes: Sequence[Outcome], name: str) -> dict[str, str]:
    kinds = [one.outcome for one in outcomes]
    return {
        "name": name,
        "tests": str(len(kinds)),
        "failures": str(kinds.count(REGRESSION)),
        "errors": str(kinds.count(UNMEASURED)),
        "skipped": str(kinds.count(UNCERTAIN)),
        "time": "0",
    }
