"""One line per check on standard output, for tests/interop/run to count; what libraries print goes to standard error."""

import os
import sys
import traceback


class Report:
    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._failed = 0

    def check(self, what, wrong=None):
        """`wrong` is None, or says what is not as it must be."""
        self._failed += wrong is not None
        self._out.write(f"pass {what}\n" if wrong is None else f"FAIL {what}: {wrong}\n")

    def table(self, title, rows):
        """Rows of cells, aligned; the first names the columns."""
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        self._out.write("\n".join([f"  {title}", *("    " + line for line in lines)]) + "\n")

    def section(self, name, function, *arguments):
        """Runs checks that belong together; an unexpected exception is one failed check."""
        try:
            function(self, *arguments)
        except Exception as error:
            traceback.print_exc()
            self.check(name, f"{type(error).__name__}: {error}")

    def close(self):
        """Ends the process at once: some libraries take long to tear down what they started."""
        self._out.flush()
        sys.stderr.flush()
        os._exit(1 if self._failed else 0)
