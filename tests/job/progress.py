"""The live line of progress: on a terminal, and only there; and what it leaves behind."""
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
import unittest
from fcntl import ioctl

from jobs import CALIB, PATIENCE, PROGRAM, TINY, PreparedTest, make_drafter

COLUMNS = 100
SLOW = ["--backend", "reference", "--scale-rule", "even"]  # some seconds of search, so that the line changes on any machine
LINE = r"(search|write|measure) \d+\.\d\d/\d+\.\d\d GB \(\d+ %\)  \d+\.\d\d GB/s"


def screen(text):
    """The lines that a terminal shows after such output, and all that was shown on its last line meanwhile."""
    lines, shown = [""], []
    for piece in re.findall(r"\r\x1b\[K|\r?\n|[^\r\n]+", text):
        if piece == "\r\x1b[K":
            shown.append(lines[-1])
            lines[-1] = ""
        elif piece.endswith("\n"):
            lines.append("")
        else:
            lines[-1] += piece
    return lines, [line for line in shown if line]


class Progress(PreparedTest):
    def prepare(self):
        type(self).source, type(self).stats = make_drafter(self.folder, 0.01)

    def on_terminal(self, command, columns=COLUMNS, **env):
        """The exit status and what a terminal of so many columns gets, standard output and error alike."""
        leader, follower = pty.openpty()
        ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        job = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
                               env={**os.environ, "TERM": "xterm", **env})
        os.close(follower)
        text, end = b"", time.monotonic() + 300 * PATIENCE
        while time.monotonic() < end and select.select([leader], [], [], 300 * PATIENCE)[0]:
            try:
                piece = os.read(leader, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            text += piece
        os.close(leader)
        return job.wait(timeout=60 * PATIENCE), text.decode()

    def command(self, *options, out="out"):
        return [PROGRAM, "quantize", self.source, self.folder / out, "--stats", self.stats, "--threads", "1", *SLOW, *options]

    def test_a_terminal_shows_one_line_that_changes_and_goes(self):
        status, text = self.on_terminal(self.command())
        self.assertEqual(status, 0, text)
        lines, shown = screen(text)
        live = [line for line in shown if re.match(LINE, line)]
        self.assertGreater(len(live), 1, text)
        self.assertEqual(live, shown)
        self.assertTrue(all(len(line) < COLUMNS for line in live))
        self.assertRegex("\n".join(live), r"\d+/\d+ tasks")
        self.assertRegex("\n".join(live), r" left")
        self.assertFalse([line for line in lines if re.search(LINE, line)])  # none stays
        self.assertEqual(sum(bool(re.match(r"\d\d:\d\d:\d\d (plan|search|write): ", line)) for line in lines), 3, lines)
        self.assertRegex("\n".join(lines), r"\nphases: plan .*\n")

    def test_it_keeps_to_a_narrow_terminal(self):
        status, text = self.on_terminal(self.command(), columns=34)
        self.assertEqual(status, 0, text)
        shown = screen(text)[1]
        self.assertGreater(len(shown), 1)
        self.assertTrue(all(len(line) < 34 for line in shown), shown)

    def test_no_control_characters_elsewhere(self):
        for options, env in (([], {"TERM": "dumb"}), (["--progress", "live"], {"TERM": "dumb"}), (["--progress", "lines"], {}),
                             (["--progress", "none"], {})):
            status, text = self.on_terminal(self.command("--overwrite", "--heartbeat", "0.1", *options), **env)
            self.assertEqual(status, 0, text)
            self.assertNotIn("\x1b", text)
            self.assertEqual("GB, " in text, options != ["--progress", "none"], text)
        result = self.run_program(*self.command("--overwrite", "--heartbeat", "0.1")[1:])
        self.assertNotIn("\r", result.stderr)
        self.assertRegex(result.stderr, r"\d\d:\d\d:\d\d search: \d+\.\d\d of \d+\.\d\d GB, \d+ of \d+ tasks\n")

    def test_a_log_file_has_lines_all_the_same(self):
        log = self.folder / "log.json"
        status, text = self.on_terminal(self.command("--heartbeat", "0.1", "--log-json", log))
        self.assertEqual(status, 0, text)
        self.assertNotIn(" tasks\r\n", text)
        messages = [json.loads(line)["message"] for line in log.read_text().splitlines()]
        self.assertTrue(any(re.match(r"search: .* tasks$", message) for message in messages), messages)
        self.assertNotIn("\\u001b", log.read_text())

    def test_a_failure_takes_the_line_away(self):
        command = self.command(out="failed")
        leader, follower = pty.openpty()
        job = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
                               env={**os.environ, "TERM": "xterm"})
        os.close(follower)
        text = b""
        while not re.search(LINE.encode(), text):
            text += os.read(leader, 1 << 16)
        job.terminate()
        while True:
            try:
                text += os.read(leader, 1 << 16)
            except OSError:
                break
        os.close(leader)
        self.assertEqual(job.wait(timeout=60 * PATIENCE), 75)
        lines = [line for line in screen(text.decode())[0] if line]
        self.assertRegex(lines[-1], r"^quantmill: stopped by SIGTERM; .*--resume")
        self.assertFalse([line for line in lines if re.match(LINE, line)])

    def test_under_mpirun_it_is_asked_for(self):
        mpirun = ["mpirun", "-np", "2"]
        status, text = self.on_terminal(mpirun + self.command())
        self.assertEqual(status, 0, text)
        self.assertNotIn("\x1b[K", text)  # of a rank standard error is a pipe
        status, text = self.on_terminal(mpirun + self.command("--progress", "live", "--overwrite"), COLUMNS=str(COLUMNS))
        self.assertEqual(status, 0, text)
        shown = [line for line in screen(text)[1] if re.match(LINE, line)]
        self.assertGreater(len(shown), 1, text)
        self.assertTrue(all(len(line) < COLUMNS for line in shown))
        self.assertRegex("\n".join(shown), r"slowest rank [01] on \S+: \d+\.\d\d GB/s")
        self.assertFalse([line for line in screen(text)[0] if re.match(LINE, line)])

    def test_what_it_can_not_show_is_refused(self):
        result = self.run_program("quantize", TINY, self.folder / "out", "--stats", CALIB, "--progress", "live", "--heartbeat", "0")
        self.assert_refused(result, 2, "--heartbeat 0")


if __name__ == "__main__":
    unittest.main()
