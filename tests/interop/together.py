"""Runs scripts of this folder one after the other in one process: what they import takes longer than much of what they check."""

import os
import pathlib
import runpy
import sys
import traceback

import report

if __name__ == "__main__":
    failed = False
    report.runs_together = True
    for script in sys.argv[1:]:
        sys.argv = [script]
        try:
            runpy.run_path(str(pathlib.Path(__file__).with_name(script)), run_name="__main__")
        except report.Closed as closed:
            failed |= closed.failed
        except Exception:  # of one script; the others are not the worse for it
            traceback.print_exc()
            report.Report().check(script, "it ended before its checks did; see the log")
            failed = True
    report.leave(failed)
