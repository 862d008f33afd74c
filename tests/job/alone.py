"""A job without a launcher depends on no other job of its machine: it shares no session directory of MPI with them."""
import unittest

from jobs import CALIB, TINY, JobTest, start_job


class Alone(JobTest):
    def test_no_folder_for_temporary_files_is_needed(self):
        (self.folder / "file").write_text("")
        self.quantize(env={"TMPDIR": str(self.folder / "file" / "in_it")})

    def test_many_at_once(self):
        jobs = [start_job(0, TINY, self.folder / f"out{i}", "--stats", CALIB, "--threads", "1") for i in range(24)]
        for job in jobs:
            _, err = job.communicate()
            self.assertEqual(job.returncode, 0, err)


if __name__ == "__main__":
    unittest.main()
