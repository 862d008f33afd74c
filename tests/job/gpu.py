"""Jobs on a GPU, emulated on the CPU: options, limits of memory, errors, and going on after a kill."""
import json
import unittest

import numpy as np

from jobs import JobTest, PreparedTest, hashes, kill, make_drafter, processes_of, start_job, wait_for_journal, write_safetensors

# The smallest that a thread can do with.
SMALL = ["--backend", "emulated", "--threads", 1, "--gpu-memory", "16M"]


def save_wide(folder, columns):
    """A Llama of one layer whose down_proj has so many columns, and all else is small."""
    hidden, heads, head, vocab = 128, 1, 128, 32
    random = np.random.default_rng(3)

    def bf16(*shape):
        return "BF16", (random.standard_normal(shape).astype("<f4").view("<u4") >> 16).astype("<u2")

    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": bf16(vocab, hidden), "lm_head.weight": bf16(vocab, hidden),
               "model.norm.weight": bf16(hidden), layer + "input_layernorm.weight": bf16(hidden),
               layer + "post_attention_layernorm.weight": bf16(hidden)}
    for name in "qkvo":
        tensors[f"{layer}self_attn.{name}_proj.weight"] = bf16(hidden, hidden)
    for name in ("gate", "up"):
        tensors[f"{layer}mlp.{name}_proj.weight"] = bf16(columns, hidden)
    tensors[layer + "mlp.down_proj.weight"] = bf16(hidden, columns)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": columns,
         "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": head, "vocab_size": vocab,
         "tie_word_embeddings": False}))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


class Memory(PreparedTest):
    def prepare(self):
        type(self).wide = save_wide(self.folder / "wide", 16384)

    def test_pieces_that_fit_little_memory_give_the_same_bytes(self):
        for scheme in ("mxfp4", "nvfp4", "int4-g128", "fp8-channel"):
            options = ["--scheme", scheme, "--scaling", "none"]
            with self.subTest(scheme=scheme):
                self.assertEqual(hashes(self.quantize(*options, *SMALL, source=self.wide, stats=None, ranks=2)),
                                 hashes(self.quantize(*options, "--backend", "cpu", source=self.wide, stats=None)))

    def test_rows_that_can_not_be_cut_say_what_they_need(self):
        # 128 rows of a block are worked on together: 16384 columns of them are 8 MB of floats, twice.
        options = ["--scheme", "fp8-block", "--scaling", "none"]
        result = self.run_program("quantize", self.wide, self.folder / "out", *options, *SMALL)
        self.assert_refused(result, 5, r"tensor model\.layers\.0\.mlp\.down_proj\.weight: the GPU's memory is too small",
                            "8.0 MiB", "raise --gpu-memory", r"now 16\.0 MiB")
        wanted = hashes(self.quantize(*options, "--backend", "cpu", source=self.wide, stats=None))
        result = self.run_program("quantize", self.wide, self.folder / "out", *options, "--backend", "emulated", "--gpu-memory", "80M",
                                  "--threads", 1, "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(hashes(self.folder / "out"), wanted)

    def test_less_than_threads_need(self):
        result = self.run_program("quantize", self.wide, self.folder / "out", "--scaling", "none", "--backend", "emulated", "--threads", 2,
                                  "--gpu-memory", "30M")
        self.assert_refused(result, 5, "--gpu-memory is 30.0 MiB", "2 threads need 32.0 MiB", "--backend cpu")
        self.assert_nothing_left(self.folder)

    def test_sizes_that_are_none(self):
        result = self.run_program("quantize", self.wide, self.folder / "out", "--scaling", "none", "--gpu-memory", "much")
        self.assert_refused(result, 2, "much")
        self.assert_nothing_left(self.folder)

    def test_memory_of_a_gpu_that_is_not_used(self):
        for backend in ("cpu", "reference"):
            result = self.run_program("quantize", self.wide, self.folder / "out", "--scaling", "none", "--gpu-memory", "1G", "--backend",
                                      backend)
            self.assert_refused(result, 2, "--gpu-memory", f"the backend is {backend}")


class Choice(JobTest):
    def test_the_log_and_the_record_say_where_the_job_ran(self):
        for backend, said in (("emulated", "emulated"), ("cpu", r"cpu \(\w+\)")):
            out = self.folder / backend
            result = self.run_program("quantize", *drafter(self), "--backend", backend, ranks=2)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertRegex(result.stderr, rf"2 ranks on 1 nodes, \d+ threads each, backend {said}\n")
            self.assertRegex(json.loads((self.folder / "out" / "quantmill_run.json").read_text())["backend"], rf"^{said}$")
            (self.folder / "out").rename(out)
        self.assertEqual(hashes(self.folder / "emulated"), hashes(self.folder / "cpu"))

    def test_unknown_backends(self):
        result = self.run_program("quantize", *drafter(self), "--backend", "gpu")
        self.assert_refused(result, 2, 'unknown backend "gpu"', "auto, cpu, cuda, emulated or reference")

    def test_verify_on_a_gpu(self):
        source, out, *stats = drafter(self)
        self.quantize(*stats[2:], source=source, out=out, stats=stats[1])
        result = self.run_program("verify", out, "--against", source, "--backend", "emulated", "--gpu-memory", "64M", ranks=2)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


def drafter(test):
    """Arguments of a job on a drafter of 4 MB."""
    model, stats = make_drafter(test.folder / "model", 0.004) if not (test.folder / "model").exists() else (
        test.folder / "model" / "drafter", test.folder / "model" / "calib")
    return [model, test.folder / "out", "--stats", stats]


class Resume(JobTest):
    def test_a_job_that_was_killed_on_a_gpu_goes_on_without_one(self):
        source, out, *stats = drafter(self)
        wanted = hashes(self.quantize(source=source, stats=stats[1], out=self.folder / "wanted"))
        for first, then in (("emulated", "cpu"), ("cpu", "emulated")):
            job = start_job(2, source, out, *stats, "--backend", first, "--checkpoint-interval", "0", "--threads", "1")
            wait_for_journal(out)
            kill(processes_of(job.pid))
            job.communicate(timeout=60)
            result = self.run_program("quantize", source, out, *stats, "--backend", then, "--resume", ranks=2)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(hashes(out), wanted, f"{first}, then {then}")
            out.rename(self.folder / f"{first}-{then}")


if __name__ == "__main__":
    unittest.main()
