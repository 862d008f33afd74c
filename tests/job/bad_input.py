"""Bad input gets one message and its exit status, leaves nothing behind, and never costs what was there."""
import json
import os
import shutil
import stat
import unittest

import numpy as np

from jobs import CALIB, GOLDEN, TINY, JobTest, copy_tiny, hashes, read_safetensors, write_safetensors

DOWN = "layers.1.mlp.down_proj.weight"


class Refusals(JobTest):
    def refuse(self, status, *words, source=TINY, args=(), stats=CALIB, ranks=2):
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        options = ["--stats", stats] if stats else []
        result = self.run_program("quantize", source, work / "out", *options, *args, ranks=ranks)
        self.assert_refused(result, status, *words)
        self.assert_nothing_left(work)

    def edited(self, edit):
        shutil.rmtree(self.folder / "source", ignore_errors=True)
        return copy_tiny(self.folder / "source", edit)

    def test_nan_and_infinity_name_tensor_row_and_column(self):
        for bits, word in ((0x7FC0, "nan"), (0x7F80, "inf"), (0xFF80, "-inf")):
            def edit(tensors, bits=bits):
                values = tensors[DOWN][1].copy()
                values[17, 100] = bits
                tensors[DOWN] = ("BF16", values)
            source = self.edited(edit)
            self.refuse(3, DOWN, "row 17", "column 100", word, source=source)
            self.refuse(3, DOWN, "row 17", "column 100", word, source=source, args=["--scaling", "none"], stats=None)

    def test_a_nan_in_a_norm_is_named(self):
        def edit(tensors):
            values = tensors["hidden_norm.weight"][1].copy()
            values[5] = 0x7FC0
            tensors["hidden_norm.weight"] = ("BF16", values)
        self.refuse(3, r"hidden_norm\.weight", "5", "nan", source=self.edited(edit))

    def test_unknown_tensor(self):
        def edit(tensors):
            tensors["layers.0.surprise.weight"] = ("BF16", np.zeros((4, 4), "<u2"))
        source = self.edited(edit)
        self.refuse(3, r"layers\.0\.surprise\.weight", "--allow-unknown", source=source)
        out = self.quantize("--allow-unknown", source=source)
        self.assertEqual(read_safetensors(out / "model.safetensors")["layers.0.surprise.weight"][0], "BF16")

    def test_missing_tensor(self):
        self.refuse(3, DOWN, source=self.edited(lambda tensors: tensors.pop(DOWN)))

    def test_wrong_shape(self):
        def edit(tensors):
            tensors[DOWN] = ("BF16", tensors[DOWN][1][:, :-32].copy())
        self.refuse(3, DOWN, "224", "256", source=self.edited(edit))

    def test_unknown_model(self):
        source = self.edited(None)
        config = json.loads((source / "config.json").read_text())
        config["architectures"] = ["NobodyKnowsForCausalLM"]
        (source / "config.json").write_text(json.dumps(config))
        self.refuse(3, "NobodyKnowsForCausalLM", "DFlash2DraftModel", source=source)

    def test_missing_source_config_and_shard(self):
        self.refuse(3, "nowhere", source=self.folder / "nowhere")
        source = self.edited(None)
        (source / "config.json").unlink()
        self.refuse(3, r"config\.json", source=source)
        shutil.rmtree(source)
        shutil.copytree(TINY / "sharded", source)
        (source / "model-00002-of-00003.safetensors").unlink()
        self.refuse(3, r"model-00002-of-00003\.safetensors", source=source)

    def test_truncated_shard(self):
        source = self.edited(None)
        path = source / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        self.refuse(3, r"model\.safetensors", source=source)

    def test_statistics(self):
        self.refuse(2, "--stats", "--scaling none", stats=None)
        self.refuse(3, "nothing.h5", stats=self.folder / "nothing.h5")
        (self.folder / "text.h5").write_text("hello")
        self.refuse(3, r"text\.h5", stats=self.folder / "text.h5")
        for number in (0, 2):
            shutil.copy(CALIB.with_name(f"calib4.tp{number}.pt"), self.folder / f"gap.tp{number}.pt")
        self.refuse(3, "tp1", stats=self.folder / "gap")

    def test_keep(self):
        self.refuse(2, "--keep", "nothing_like_it", args=["--keep", "nothing_like_it"])
        self.refuse(2, "q_proj", "k_proj", "qkv_proj", args=["--keep", "*.q_proj"])

    def test_options(self):
        self.refuse(2, "fp3", args=["--scheme", "fp3"])
        self.refuse(2, "--frobnicate", args=["--frobnicate"])
        self.refuse(2, "alphas", args=["--alphas", "0,2"])
        self.refuse(2, "plain", args=["--scheme", "bf16", "--layout", "quark"])
        self.refuse(2, "--memory", args=["--memory", "1M"])
        self.refuse(2, 'unknown backend "gpu"', args=["--backend", "gpu"])
        self.refuse(2, "no-such-arch", args=["--arch", "no-such-arch"])
        (self.folder / "recipe.json").write_text('{"schemes": "mxfp4"}')
        self.refuse(2, r"recipe\.json", "schemes", args=["--recipe", self.folder / "recipe.json"])

    def test_log_file_that_cannot_be_written(self):
        self.refuse(4, "log", args=["--log-json", "/nowhere/log.json"])

    def test_output_inside_source_and_the_reverse(self):
        source = self.edited(None)
        before = hashes(source)
        for out in (source, source / "out", self.folder):
            result = self.run_program("quantize", source, out, "--stats", CALIB, "--overwrite")
            self.assert_refused(result, 2, "inside each other")
        self.assertEqual(hashes(source), before)

    def test_output_in_a_folder_that_does_not_exist(self):
        result = self.run_program("quantize", TINY, self.folder / "no" / "out", "--stats", CALIB)
        self.assert_refused(result, 4, "does not exist")


class Overwrite(JobTest):
    def test_an_existing_output_is_never_touched_without_overwrite(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "precious").write_text("work of years")
        result = self.run_program("quantize", TINY, out, "--stats", CALIB, ranks=2)
        self.assert_refused(result, 2, "exists", "--overwrite")
        self.assertEqual((out / "precious").read_text(), "work of years")
        self.assert_nothing_left(self.folder, "out")

    def test_overwrite_replaces_only_a_finished_job(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "precious").write_text("work of years")
        failed = self.run_program("quantize", TINY, out, "--stats", TINY / "hostile" / "nan", "--overwrite", ranks=2)
        self.assert_refused(failed, 3, "nan")
        self.assertEqual((out / "precious").read_text(), "work of years")
        self.quantize("--overwrite", out=out, ranks=2)
        self.assertFalse((out / "precious").exists())
        self.assertTrue((out / "model.safetensors").exists())
        self.assert_nothing_left(self.folder, "out")

    def test_what_a_killed_job_left_is_cleared(self):
        (self.folder / ".out.quantmill-work").mkdir()
        (self.folder / ".out.quantmill-work" / "half").write_text("x")
        (self.folder / ".out.quantmill-lock").write_text("")
        out = self.quantize(out=self.folder / "out")
        self.assertFalse((out / "half").exists())
        self.assert_nothing_left(self.folder, "out")


class Files(JobTest):
    def test_other_files_are_copied_and_other_weights_left_behind(self):
        source = copy_tiny(self.folder / "source")
        (source / "tokenizer.json").write_bytes(b"\x00tokens\xff")
        (source / "sub folder").mkdir()
        (source / "sub folder" / "chat template.jinja").write_text("{{ x }}")
        (source / "pytorch_model.bin").write_bytes(b"old weights")
        (source / "tokenizer.json").chmod(stat.S_IRUSR)
        out = self.folder / "out"
        result = self.run_program("quantize", source, out, "--stats", CALIB, ranks=2)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((out / "tokenizer.json").read_bytes(), b"\x00tokens\xff")
        self.assertEqual((out / "sub folder" / "chat template.jinja").read_text(), "{{ x }}")
        self.assertFalse((out / "pytorch_model.bin").exists())
        self.assertRegex(result.stderr, "left behind, .*: pytorch_model.bin")

    def test_a_download_cache_of_links_is_read(self):
        blobs, snapshot = self.folder / "blobs", self.folder / "snapshots" / "abc"
        blobs.mkdir()
        snapshot.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(TINY / name, blobs / f"hash-of-{name}")
            os.symlink(f"../../blobs/hash-of-{name}", snapshot / name)
        os.symlink(snapshot, self.folder / "link")
        plain = self.folder / "plain"
        shutil.copytree(blobs, plain)
        for name in ("config.json", "model.safetensors"):
            (plain / f"hash-of-{name}").rename(plain / name)
        self.assertEqual(hashes(self.quantize(source=self.folder / "link")), hashes(self.quantize(source=plain)))

    def test_config_keeps_every_key_in_order_and_adds_the_section(self):
        out = self.quantize()
        source = json.loads((TINY / "config.json").read_text())
        config = json.loads((out / "config.json").read_text())
        section = config.pop("quantization_config")
        self.assertEqual(list(config.items()), list(source.items()))
        maker = json.loads((GOLDEN / "configs" / "quark.mxfp4.config.json").read_text())["quantization_config"]
        for volatile in ("version", "exclude"):
            section.pop(volatile), maker.pop(volatile)
        self.assertEqual(section, maker)

    def test_kept_modules_are_excluded_as_servers_spell_them(self):
        out = self.quantize("--keep", "*_proj", "--keep", "layers.*")
        exclude = json.loads((out / "config.json").read_text())["quantization_config"]["exclude"]
        for entry in ("layers.0.self_attn.q_proj", "layers.1.mlp.down_proj", "re:.*kernel_projection$",
                      "re:.*self_attn\\.(q|k|v|qkv)_proj$"):
            self.assertIn(entry, exclude)
        tensors = read_safetensors(out / "model.safetensors")
        self.assertEqual([name for name, (dtype, _) in tensors.items() if dtype == "U8"],
                         ["fc.weight", "fc.weight_scale"])

    def test_no_alignment_is_assumed(self):
        def odd(tensors):
            first = {"a_byte": ("U8", np.zeros(1, "u1"))}
            first.update(tensors)
            tensors.clear()
            tensors.update(first)
        out = self.quantize("--allow-unknown", source=copy_tiny(self.folder / "odd", odd))
        plain = self.quantize()
        ours, wanted = read_safetensors(out / "model.safetensors"), read_safetensors(plain / "model.safetensors")
        ours.pop("a_byte")
        for name in wanted:
            self.assertTrue((ours[name][1] == wanted[name][1]).all(), name)


class Verify(JobTest):
    def test_a_good_output_passes_everything(self):
        out = self.quantize(ranks=2)
        result = self.run_program("verify", out, "--against", TINY, "--function")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual([line[:8] for line in result.stdout.splitlines()],
                         ["ok    fi", "ok    st", "ok    so", "ok    fu"])

    def test_changes_are_found(self):
        out = self.quantize()

        def flip(tensors):
            codes = tensors["fc.weight"][1].copy()
            codes[3, 7] ^= 1
            tensors["fc.weight"] = ("U8", codes)
        changed = self.folder / "changed"
        shutil.copytree(out, changed)
        tensors = read_safetensors(changed / "model.safetensors")
        flip(tensors)
        write_safetensors(changed / "model.safetensors", tensors)
        result = self.run_program("verify", changed)
        self.assertEqual(result.returncode, 10)
        self.assertRegex(result.stdout, r"WRONG model\.safetensors")
        (changed / "config.json").unlink()
        self.assertRegex(self.run_program("verify", changed).stdout, r"WRONG config\.json: the file is missing")

    def test_a_missing_scale_is_found(self):
        out = self.quantize()
        tensors = read_safetensors(out / "model.safetensors")
        tensors.pop("layers.0.self_attn.k_proj.weight_scale")
        write_safetensors(out / "model.safetensors", tensors)
        self.assertRegex(self.run_program("verify", out).stdout, r"WRONG tensor layers\.0\.self_attn\.k_proj\.weight: U8 are codes .* its scale is not")

    def test_another_source_is_found(self):
        out = self.quantize()

        def nudge(tensors):
            values = tensors[DOWN][1].copy()
            values[2, 3] ^= 0x8000
            values[2, 4] ^= 0x40
            tensors[DOWN] = ("BF16", values)
        other = copy_tiny(self.folder / "other", nudge)
        result = self.run_program("verify", out, "--against", other)
        self.assertEqual(result.returncode, 12)
        self.assertRegex(result.stdout, "WRONG tensor " + DOWN)

    def test_function_needs_the_source(self):
        self.assert_refused(self.run_program("verify", self.quantize(), "--function"), 2, "--against")

    def test_not_made_by_quantmill(self):
        self.assert_refused(self.run_program("verify", TINY), 3, "quantmill_manifest.json")


if __name__ == "__main__":
    unittest.main()
