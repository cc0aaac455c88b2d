"""A plugin of pytest for `mutants.py`: seconds, failures, and the lines that each test ran."""

import contextlib
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData, CoverageException

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder())


class Recorder:
    """Notes seconds, failures and, under coverage, the lines that each test ran.

    Beside the copy stands the order of the tests: known tests of place -1 are not run.
    """

    def __init__(self) -> None:
        self.copy = os.environ["MUTANTS_COPY"]
        self.order: dict[str, int] = json.loads(Path(f"{self.copy}.order").read_text())
        self.coverage = Coverage.current()
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: dict[str, str] = {}
        self.lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        last = len(self.order)
        items[:] = [item for item in items if self.order.get(item.nodeid, last) >= 0]
        items.sort(key=lambda item: self.order.get(item.nodeid, last))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = "not collected"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.coverage:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            late = "Timeout" in report.longreprtext
            self.failed.setdefault(report.nodeid, "timeout" if late else "failed")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """What ranks and other processes have left belongs to the test that ends here."""
        own = self.coverage and Path(self.coverage.get_data().data_filename())
        for path in set(ROOT.glob(".coverage.*")) - {own}:
            data = CoverageData(str(path))
            with contextlib.suppress(CoverageException):  # still being written: the next test's
                data.read()
                for name in data.measured_files():
                    self.lines[nodeid][name].update(data.lines(name) or ())
                path.unlink()

    def pytest_sessionfinish(self) -> None:
        if self.coverage:
            self.coverage.stop()
            data = self.coverage.get_data()
            for name in data.measured_files():
                for line, tests in data.contexts_by_lineno(name).items():
                    for test in filter(None, tests):
                        self.lines[test][name].add(line)
        lines = {
            test: {str(Path(name).relative_to(ROOT)): sorted(at) for name, at in names.items()}
            for test, names in self.lines.items()
        }
        answer = {"seconds": self.seconds, "failed": self.failed, "lines": lines}
        Path(f"{self.copy}.json").write_text(json.dumps(answer))
