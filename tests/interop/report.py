"""One line per check on standard output, for tests/interop/run to count; what libraries print goes to standard error."""

import json
import os
import pathlib
import shutil
import sys
import traceback

_streams = []  # standard output of the process, once a report took it from libraries
runs_together = False  # with other scripts in one process


class Closed(Exception):
    """A script that runs together with others is done."""

    def __init__(self, failed):
        super().__init__()
        self.failed = failed


def leave(failed):
    """Ends the process at once: some libraries take long to tear down what they started."""
    for stream in (*_streams, sys.stderr):
        stream.flush()
    os._exit(1 if failed else 0)


class Report:
    def __init__(self):
        if not _streams:
            _streams.append(os.fdopen(os.dup(1), "w", buffering=1))
            os.dup2(2, 1)
        self._out = _streams[0]
        self._failed = 0
        self._cells = []

    def check(self, what, wrong=None):
        """`wrong` is None, or says what is not as it must be."""
        self._failed += wrong is not None
        self._out.write(f"pass {what}\n" if wrong is None else f"FAIL {what}: {wrong}\n")

    def table(self, title, rows):
        """Rows of cells, aligned; the first names the columns."""
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        self._out.write("\n".join([f"  {title}", *("    " + line for line in lines)]) + "\n")

    def cell(self, target, reader, text):
        """Of the matrix of targets and readers that tests/interop/run makes of all scripts'."""
        self._cells.append((target, reader, text))

    def section(self, name, function, *arguments):
        """Runs checks that belong together; an unexpected exception is one failed check."""
        try:
            function(self, *arguments)
        except Exception as error:
            traceback.print_exc()
            self.check(name, f"{type(error).__name__}: {error}")

    def close(self):
        """Ends the script."""
        if self._cells:
            script = pathlib.Path(sys.argv[0]).stem
            path = pathlib.Path(os.environ["QUANTMILL_INTEROP_WORK"]) / f"{script}.cells.json"
            path.write_text(json.dumps(self._cells))
        if runs_together:
            raise Closed(self._failed > 0)
        leave(self._failed)


def run_cases(work, cases, check):
    """A script whose checks are check(report, case) for each case, or for those in its arguments; `work`: its own empty folder."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    report = Report()
    for case in sys.argv[1:] or cases:
        report.section(case, check, case)
    report.close()
