"""Makes the model, its statistics and what each method gives, and evaluates it. Results are kept in build/quality/results.json."""
import hashlib
import json
import re
import shutil
import time

import numpy
import torch

import bench_support
import environments
import llama
import methods
import smollm2
from collecting import recorder as recording
from environments import BUILD

RESULTS = BUILD / "results.json"


def tokens(which):
    return torch.from_numpy(numpy.load(methods.TOKENS)[which].astype("int64"))


def record_statistics(model, sequences):
    """What scripts/collect records, of the first of the stored sequences, on one thread; the CPU seconds that it took, and those
    of the Gram matrices among them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    recorder = recording.Recorder(torch, clip=10)
    gram_seconds, begun = 0, time.process_time()

    def add(name, values):
        nonlocal gram_seconds
        for sequence in values:
            recorder.add(name, sequence)
            before = time.process_time()
            recorder.add_gram(name, sequence.float())
            gram_seconds += time.process_time() - before

    for rows in tokens("calibration")[:sequences].split(8):
        model.states(rows, add)
    recording.write_statistics(methods.statistics_file(sequences), recorder.statistics(), recorder.grams)
    torch.set_num_threads(threads)
    return {"cpu_seconds": time.process_time() - begun, "gram_cpu_seconds": gram_seconds}


def make_weights(method):
    """The weights that a method gives, and what it cost, the whole process on one thread; `before`: until it begins, as it says."""
    if method.program == methods.UNQUANTIZED:
        return llama.load(methods.MODEL), None
    others = environments.others() if method.program not in ("quantmill", methods.SEED) else None
    environment = environments.PEERS_ENVIRONMENT if others else environments.ENVIRONMENT
    shutil.rmtree(methods.OUT, ignore_errors=True)
    _, cpu, peak, said = bench_support.measured(methods.command(method, BUILD / "env" / "bin" / "python", others),
                                                env=environment | {"OMP_NUM_THREADS": "1"})
    before = re.search(r"^ready (\S+) (\S+)", said, re.MULTILINE)
    cost = {"cpu_seconds": cpu, "peak_mb": peak, "cpu_seconds_before": before and float(before[1]), "peak_mb_before": before and float(before[2])}
    return llama.load(methods.OUT), cost


def digest(weights):
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode() + (weights[name] + 0.0).numpy().tobytes())  # -0 is 0
    return found.hexdigest()


def divergences(weights, config, quantizes_activations, rows, reference):
    """Mean KL(original || this) per token, and the mean negative log likelihood, of each row."""
    model = llama.Llama(weights, config, quantizes_activations)
    found = []
    for row in rows:
        logs = torch.log_softmax(model.logits(row[None])[0], -1)
        wanted = torch.from_numpy(reference[len(found)].astype("float32"))
        likelihood = logs[:-1].gather(1, row[1:, None]).mean()
        found.append((float((wanted.exp() * (wanted - logs)).sum(-1).mean()), -float(likelihood)))
    return found


def reference_logs(model, rows):
    """Log probabilities of the original, [rows, 512, vocabulary] in half precision, kept on disk."""
    file = BUILD / f"reference-{len(rows)}.npy"
    if not file.exists():
        logs = numpy.stack([torch.log_softmax(model.logits(row[None])[0], -1).half().numpy() for row in rows])
        numpy.save(file, logs)
    return numpy.load(file, mmap_mode="r")


class Evaluation:
    def __init__(self, num_rows):
        if not (methods.MODEL / "config.json").exists():
            smollm2.write(methods.MODEL)
        self.config = json.loads((methods.MODEL / "config.json").read_text())
        self.model = llama.Llama(llama.load(methods.MODEL), self.config)
        self.rows = tokens("evaluation")[:num_rows]
        self.reference = reference_logs(self.model, self.rows)
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        self.results = {"rows": {}, "statistics": {}} | (kept if "rows" in kept else {})

    def save(self):
        RESULTS.write_text(json.dumps(self.results, indent=1) + "\n")

    def measure(self, name):
        """A row of the results, unless there is one of this method as it is now."""
        method, key = methods.METHODS[name], methods.key(methods.METHODS[name])
        row = self.results["rows"].get(name)
        if row and row["key"] == key and len(row["w4a16"]) >= len(self.rows):
            return
        if method.sequences and method.program in ("quantmill", methods.SEED) and not methods.statistics_file(method.sequences).exists():
            self.results["statistics"][str(method.sequences)] = record_statistics(self.model, method.sequences)
            self.save()
        weights, cost = make_weights(method)
        self.results["rows"][name] = {
            "key": key, "weights": digest(weights), "cost": cost,
            "quantized": sum(value.numel() for tensor, value in weights.items() if tensor.endswith("_proj.weight"))} | self.evaluate(weights)
        self.results["machine"] = bench_support.machine(BUILD)
        self.save()

    def evaluate(self, weights):
        """By objective; what another method's row has, if it made the same weights."""
        found = digest(weights)
        for row in self.results["rows"].values():
            if row["weights"] == found and len(row["w4a16"]) >= len(self.rows):
                return {objective: row[objective] for objective in ("w4a16", "w4a4")}
        return {objective: divergences(weights, self.config, objective == "w4a4", self.rows, self.reference) for objective in ("w4a16", "w4a4")}
