"""Damaged HDF5 files, some of which the library that reads them does not survive: one message, exit 3, nothing left behind."""
import random
import unittest

from jobs import CALIB, GOLDEN, TINY, JobTest

HOSTILE = GOLDEN / "hostile-hdf5"  # found by tests/fuzz/hdf5_fuzz.cpp


class HostileHdf5(JobTest):
    def test_a_file_that_crashes_the_library(self):
        for ranks in (0, 2):
            for option in ("--stats", "--scales"):
                with self.subTest(ranks=ranks, option=option):
                    result = self.run_program("quantize", TINY, self.folder / "out", option, HOSTILE / "crashes-the-library.h5", ranks=ranks)
                    # A sanitizer ends the process before the signal does.
                    self.assert_refused(result, 3, r"crashes-the-library\.h5", "is damaged: the HDF5 library (crashed on|broke down over) it",
                                        "make the file anew")
                    self.assert_nothing_left(self.folder)

    def test_a_file_that_claims_more_memory_than_there_is(self):
        result = self.run_program("stats", "show", HOSTILE / "claims-17-gigabytes.h5")
        self.assert_refused(result, 3, r"claims-17-gigabytes\.h5", "damaged", "memory allocation failed")

    def test_a_file_that_crashes_other_readers(self):
        # What the library does with it depends on what is in memory.
        self.assert_refused(self.run_program("stats", "show", HOSTILE / "crashes-h5py.h5"), 3,
                            r"crashes-h5py\.h5.*(/inputs/b%2Fc: .*HDF5: |is damaged: the HDF5 library)")

    def test_damage_anywhere(self):
        whole = self.folder / "whole.h5"
        result = self.run_program("stats", "import", CALIB, "-o", whole)
        self.assertEqual(result.returncode, 0, result.stderr)
        source = whole.read_bytes()
        rng = random.Random(11)
        for case in range(150):
            damaged = bytearray(source)
            at, length = rng.randrange(len(source)), rng.choice((1, 1, 4, 8, 64))
            damaged[at:at + length] = rng.choice((bytes(length), b"\xff" * length, rng.randbytes(length)))[:len(source) - at]
            file = self.folder / "damaged.h5"
            file.write_bytes(damaged)
            with self.subTest(case=case, at=at, length=length):
                result = self.run_program("stats", "show", file)
                if result.returncode != 0:  # damage of unused bytes, or of a value that is still one
                    self.assert_refused(result, 3, r"damaged\.h5")


if __name__ == "__main__":
    unittest.main()
