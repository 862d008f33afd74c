"""What --page-cache drop leaves of source and output in memory: next to nothing, and the same bytes."""
import ctypes
import mmap
import os
import unittest

from jobs import SHORT_SEARCH, PreparedTest, hashes, make_drafter

PAGE = mmap.PAGESIZE


def resident(path):
    """Which share of a file's pages is in memory."""
    pages = (ctypes.c_ubyte * (-(-path.stat().st_size // PAGE)))()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), pages)
        del first  # else the file can't be unmapped
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) / len(pages)


def can_drop(folder):
    """Whether its file system forgets pages that are on the disk: tmpfs has no disk."""
    probe = folder / "probe"
    with open(probe, "wb") as file:
        file.write(bytes(16 * PAGE))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    left = resident(probe)
    probe.unlink()
    return left == 0


class PageCache(PreparedTest):
    def prepare(self):
        """A drafter of 40 MB, and what a job makes of it that keeps everything in memory."""
        if not can_drop(self.folder):
            raise unittest.SkipTest("the temporary folder is on a file system that keeps every page in memory, such as tmpfs")
        type(self).model, type(self).stats = make_drafter(self.folder, 0.04)
        type(self).kept = self.quantize("--page-cache", "keep", *SHORT_SEARCH, source=self.model, stats=self.stats)

    def shares(self, out):
        return resident(self.model / "model.safetensors"), resident(out / "model.safetensors")

    def test_keep_leaves_both_in_memory(self):
        out = self.quantize("--page-cache", "keep", *SHORT_SEARCH, source=self.model, stats=self.stats)
        for share in self.shares(out):
            self.assertGreater(share, 0.9)

    def test_drop_leaves_next_to_nothing_and_the_same_bytes(self):
        for ranks in (0, 2):
            for options in ([], ["--no-journal"]):
                out = self.quantize("--page-cache", "drop", *options, *SHORT_SEARCH, source=self.model, stats=self.stats, ranks=ranks)
                for share in self.shares(out):
                    self.assertLess(share, 0.02)
                self.assertEqual(hashes(out), hashes(self.kept))

    def test_a_small_model_stays_in_memory(self):
        out = self.quantize(*SHORT_SEARCH, source=self.model, stats=self.stats)
        self.assertGreater(self.shares(out)[1], 0.9)

    def test_it_is_no_part_of_what_makes_a_job_the_same(self):
        out = self.folder / "out"
        result = self.run_program("quantize", self.model, out, "--stats", self.stats, *SHORT_SEARCH)
        self.assertEqual(result.returncode, 0, result.stderr)
        again = self.run_program("quantize", self.model, out, "--stats", self.stats, *SHORT_SEARCH, "--page-cache", "drop", "--resume")
        self.assertIn("nothing to do", again.stdout)


if __name__ == "__main__":
    unittest.main()
