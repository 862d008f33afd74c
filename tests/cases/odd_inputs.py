"""Checkpoints that are unusual and in order: they come out whole. And limits that keep a job inside its place."""
import json
import os
import shutil
import stat
import sys
import unittest
import zipfile

import numpy as np

from jobs import CALIB, ROOT, TINY, JobTest, copy_tiny, hashes, read_safetensors, write_safetensors

sys.path.insert(0, str(ROOT / "tests" / "job"))
from any_model import Model, save  # noqa: E402

NEAREST = ("--scaling", "none", "--scale-rule", "even")
ODD = {"a.scalar": ("F32", np.array(1.5, "<f4")), "a.nothing": ("BF16", np.zeros((0, 7), "<u2")), "a.count": ("I64", np.array([1, -2, 3], "<i8")),
       "a.mask": ("BOOL", np.array([1, 0, 1], "u1")), "a.e5m2": ("F8_E5M2", np.arange(256, dtype="u1")), "a.e8m0": ("F8_E8M0", np.arange(256, dtype="u1")),
       "a.byte": ("U8", np.arange(3, dtype="u1")), "ein.Gewicht.für.日本": ("BF16", np.arange(6, dtype="<u2").reshape(1, 6)),
       "a.column": ("BF16", np.arange(6, dtype="<u2").reshape(6, 1)), "a.conv2d": ("BF16", np.arange(36, dtype="<u2").reshape(2, 2, 3, 3)),
       "a.conv3d": ("F16", np.arange(48, dtype="<u2").reshape(2, 3, 2, 2, 2)), "a.double": ("F64", np.array([0.1, np.nan], "<f8"))}


def raw(path):
    """Name -> (dtype, shape, bytes), for types that no array has."""
    text = path.read_bytes()
    size = int.from_bytes(text[:8], "little")
    header = json.loads(text[8:8 + size])
    return {name: (entry["dtype"], entry["shape"], text[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


class Tensors(JobTest):
    def test_types_shapes_and_names_of_every_kind_are_copied(self):
        source = copy_tiny(self.folder / "source", lambda tensors: tensors.update(ODD))
        out = self.quantize("--allow-unknown", *NEAREST, source=source, stats=None)
        before, after = raw(source / "model.safetensors"), raw(out / "model.safetensors")
        for name in ODD:
            self.assertEqual(after[name], before[name], name)
        result = self.run_program("verify", out, "--against", source)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_vision_of_any_shape_needs_no_permission(self):
        tensors = Model().tensors
        tensors["visual.patch_embed.proj.weight"] = ODD["a.conv3d"]
        tensors["visual.merger.weight"] = ("BF16", np.arange(64, dtype="<u2").reshape(1, 64))
        source = save(self.folder / "model", tensors)
        out = raw(self.quantize(*NEAREST, source=source, stats=None) / "model.safetensors")
        for name in ("visual.patch_embed.proj.weight", "visual.merger.weight"):
            self.assertEqual(out[name], raw(source / "model.safetensors")[name])

    def test_columns_that_are_no_whole_blocks_are_named_with_a_way_out(self):
        narrow = Model()
        tensors = dict(narrow.tensors)
        for name in [name for name in tensors if ".experts." in name]:  # 80 inside each expert, no multiple of 32
            dtype, values = tensors[name]
            tensors[name] = (dtype, values[:, :80].copy() if "down" in name else values[:80].copy())
        source = save(self.folder / "narrow", tensors, moe_intermediate_size=80)
        result = self.run_program("quantize", source, self.folder / "out", *NEAREST)
        self.assert_refused(result, 3, "experts.0.down_proj.weight: 80 columns are not a multiple of the 32", "--keep")
        self.quantize(*NEAREST, "--scheme", "fp8-channel", source=source, stats=None)

    def test_one_expert_of_one_row(self):
        tensors = {name: value for name, value in Model().tensors.items() if ".experts." not in name or ".experts.0." in name}
        for name in [name for name in tensors if name.endswith("mlp.gate.weight")]:
            tensors[name] = (tensors[name][0], tensors[name][1][:1].copy())
        out = self.quantize(*NEAREST, source=save(self.folder / "one", tensors, num_experts=1, num_experts_per_tok=1), stats=None)
        self.assertEqual(raw(out / "model.safetensors")["model.layers.0.mlp.gate.weight"][1], [1, 64])


class Folders(JobTest):
    def test_a_shard_without_tensors_is_written_without_tensors(self):
        source = self.folder / "source"
        shutil.copytree(TINY / "sharded", source)
        files = sorted(path.name for path in source.glob("*.safetensors"))
        for number, name in enumerate(files, 1):
            (source / name).rename(source / f"model-{number:05}-of-{len(files) + 1:05}.safetensors")
        write_safetensors(source / f"model-{len(files) + 1:05}-of-{len(files) + 1:05}.safetensors", {})
        (source / "model.safetensors.index.json").unlink()
        out = self.quantize(*NEAREST, source=source, stats=None)
        wanted = self.quantize(*NEAREST, source=TINY, stats=None)
        found = {}
        for path in out.glob("*.safetensors"):
            found |= raw(path)
        self.assertEqual(found, raw(wanted / "model.safetensors"))

    def test_the_same_weights_in_another_form_are_left_behind(self):
        source = copy_tiny(self.folder / "source")
        for name in ("consolidated.safetensors", "original/consolidated.00.pth", "adapter_model.safetensors", "model.fp16.safetensors"):
            (source / name).parent.mkdir(exist_ok=True)
            if name.endswith(".safetensors"):
                write_safetensors(source / name, {"other": ("BF16", np.zeros((2, 2), "<u2"))})
            else:
                (source / name).write_bytes(b"weights")
        (source / "adapter_config.json").write_text("{}")
        names = read_safetensors(source / "model.safetensors")
        (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}))
        out = self.folder / "out"
        result = self.run_program("quantize", source, out, *NEAREST)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([path.name for path in out.rglob("*") if path.suffix in (".safetensors", ".pth")], ["model.safetensors"])
        for name in ("consolidated.safetensors", "adapter_model.safetensors", "original/consolidated.00.pth"):
            self.assertIn(name, result.stderr)

    def test_a_config_with_a_mark_or_numbers_that_are_none_is_refused(self):
        for start, word in (("\ufeff{", "byte order mark"), ('{"x": NaN, ', "NaN"), ('{"x": Infinity, ', "Infinity")):
            source = copy_tiny(self.folder / word)
            (source / "config.json").write_text((source / "config.json").read_text().replace("{", start, 1))
            self.assert_refused(self.run_program("plan", source, self.folder / "out", *NEAREST), 3, r"config\.json", word)

    def test_a_source_that_can_only_be_read(self):
        source = copy_tiny(self.folder / "source")
        for path in (source / "config.json", source / "model.safetensors", source):
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
        self.addCleanup(source.chmod, 0o755)
        before = hashes(source)
        self.quantize(*NEAREST, source=source, stats=None)
        self.assertEqual(hashes(source), before)

    def test_long_paths_and_names_with_spaces_and_line_breaks(self):
        deep = self.folder
        while len(str(deep)) < 2000:
            deep = deep / ("a long name " * 10).strip()
        deep.mkdir(parents=True)
        source = copy_tiny(deep / "the model\nof yesterday")
        (source / "read me\nfirst.txt").write_text("first")
        out = self.quantize("--log-json", self.folder / "log", source=source, out=deep / "out put\n", stats=CALIB, ranks=2)
        self.assertEqual((out / "read me\nfirst.txt").read_text(), "first")
        for line in (self.folder / "log").read_text().splitlines():
            json.loads(line)
        self.assertEqual(self.run_program("verify", out, "--against", source).returncode, 0)

    def test_only_pickled_weights_are_explained(self):
        source = self.folder / "source"
        source.mkdir()
        shutil.copy(TINY / "config.json", source)
        (source / "pytorch_model.bin").write_bytes(b"weights")
        self.assert_refused(self.run_program("plan", source, self.folder / "out", *NEAREST), 3, "pytorch_model.bin", "safetensors")


class Limits(JobTest):
    def test_files_have_the_rights_that_the_user_wants(self):
        before = os.umask(0o027)
        try:
            out = self.quantize(*NEAREST, stats=None, source=copy_tiny(self.folder / "source"))
        finally:
            os.umask(before)
        self.assertEqual({oct(path.stat().st_mode & 0o777) for path in out.iterdir()}, {"0o640"})
        self.assertEqual(oct(out.stat().st_mode & 0o777), "0o750")

    def test_a_link_out_of_the_source_is_no_way_to_write(self):
        source = copy_tiny(self.folder / "source")
        (self.folder / "elsewhere.txt").write_text("elsewhere")
        (source / "notes.txt").symlink_to(self.folder / "elsewhere.txt")
        for command in ("plan", "quantize"):
            refused = self.run_program(command, source, self.folder / "out", *NEAREST)
            self.assert_refused(refused, 3, r"notes\.txt.* is a link to .*elsewhere\.txt, outside", "--follow-links")
        out = self.quantize(*NEAREST, "--follow-links", source=source, stats=None)
        self.assertFalse((out / "notes.txt").is_symlink())
        self.assertEqual((out / "notes.txt").read_text(), "elsewhere")

    def test_a_link_where_the_work_is_done_is_not_followed(self):
        victim = self.folder / "victim"
        victim.mkdir()
        (victim / "keep.txt").write_text("keep")
        (self.folder / ".out.quantmill-work").symlink_to(victim)
        out = self.quantize(*NEAREST, stats=None, source=copy_tiny(self.folder / "source"), out=self.folder / "out")
        self.assertFalse(out.is_symlink())
        self.assertEqual([path.name for path in victim.iterdir()], ["keep.txt"])

    def test_names_of_shards_that_leave_the_folder(self):
        source = copy_tiny(self.folder / "source")
        names = read_safetensors(source / "model.safetensors")
        for place in ("../model.safetensors", "/etc/passwd", "a/../../model.safetensors"):
            (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, place)}))
            self.assert_refused(self.run_program("plan", source, self.folder / "out", *NEAREST), 3, "index.json")

    def test_a_header_that_claims_more_than_there_is(self):
        source = copy_tiny(self.folder / "source")
        path = source / "model.safetensors"
        for claim in (2**63, 200 * 2**20, path.stat().st_size):
            path.write_bytes(claim.to_bytes(8, "little") + path.read_bytes()[8:])
            self.assert_refused(self.run_program("plan", source, self.folder / "out", *NEAREST), 3, r"model\.safetensors")

    def test_an_archive_that_swells_is_refused_as_it_is(self):
        for kind, word in ((zipfile.ZIP_DEFLATED, "compressed"), (zipfile.ZIP_STORED, "data.pkl|bytes")):
            with zipfile.ZipFile(self.folder / "calib.tp0.pt", "w", kind) as archive:
                archive.writestr("calib/data.pkl", bytes(70 << 20))
            result = self.run_program("plan", TINY, self.folder / "out", "--stats", self.folder / "calib")
            self.assert_refused(result, 3, r"calib\.tp0\.pt", word)

    def test_a_config_of_endless_depth_and_a_name_of_endless_length(self):
        source = copy_tiny(self.folder / "source")
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config)[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}")
        self.assert_refused(self.run_program("plan", source, self.folder / "out", *NEAREST), 3, r"config\.json")
        source = copy_tiny(self.folder / "long", lambda tensors: tensors.update({"x" * 100_000: ODD["a.byte"]}))
        result = self.run_program("plan", source, self.folder / "out", *NEAREST)
        self.assert_refused(result, 3, "xxx", "names of up to 4096")
        self.assertLess(len(result.stderr), 1000)


if __name__ == "__main__":
    unittest.main()
