"""Sums over what modules of a model are given, and the statistics that they make. For scripts/collect; the caller says which modules."""
import os

FEW_TOKENS = 32  # as quantize --min-tokens


class Recorder:
    """Sums over the rows of every recorded input, in double precision. Of ranks that share a model by tensor parallelism each records
    its part of the channels; Gram matrices need all of them, so then the ranks gather what is split, and the first records.
    `gather`: this rank's channels -> those of all ranks, in order."""

    def __init__(self, torch, clip=None, rank=0, ranks=1, gather=None):
        self.torch = torch
        self.clip = clip  # of the Gram matrices; None: there are none
        self.rank, self.ranks, self.gather = rank, ranks, gather
        self.whole = clip is not None
        self.writes = rank == 0 or not self.whole
        self.sums = {}
        self.grams = {}
        self.same = {}  # name -> other names of the same input
        self.last = None  # input: modules that share it have one matrix

    def share(self, values, channels):
        """What is recorded of an input whose readers are split by its `channels`, where `values` are this rank's or all of them."""
        if self.whole:
            return self.gather(values) if values.shape[-1] < channels else values
        return values if values.shape[-1] < channels else values.chunk(self.ranks, -1)[self.rank]

    def see(self, name, values):
        """What a module of this name is given, a tensor of any shape whose last dimension are channels."""
        if not self.writes or not self.torch.is_floating_point(values) or values.numel() == 0:
            return
        rows = values.detach().reshape(-1, values.shape[-1])
        self.add(name, rows)
        if self.clip is not None and self.last is not values:
            self.add_gram(name, rows.float())
        self.last = values

    def add(self, name, rows):
        if not self.writes:
            return
        rows = rows.double()
        magnitudes = rows.abs()
        new = (magnitudes.sum(0), rows.square().sum(0), magnitudes.amax(0) if len(rows) else magnitudes.sum(0))
        if name not in self.sums:
            self.sums[name] = [*new, len(rows)]
            return
        old = self.sums[name]
        old[0] += new[0]
        old[1] += new[1]
        old[2] = self.torch.maximum(old[2], new[2])
        old[3] += len(rows)

    def add_gram(self, name, rows):
        sizes = rows.square().sum(1)
        weights = (self.clip * sizes.median() / sizes.clamp_min(1e-12)).clamp(max=1)
        rows = rows * weights.sqrt().unsqueeze(1)
        self.grams[name] = self.grams.get(name, 0) + rows.T @ rows

    def statistics(self):
        result = {}
        for name, (absolute, squares, largest, count) in self.sums.items():
            tokens = max(1, count)
            means = {"absmean": absolute / tokens, "sqmean": squares / tokens, "absmax": largest}
            for name in (name, *self.same.get(name, ())):
                result[name] = {**{key: value.float().cpu().clone() for key, value in means.items()}, "count": count}
        return result


class Progress:
    """What was recorded so far, kept in a file so that a later run can go on. `key` says of what model, text and settings."""

    def __init__(self, prefix, key, recorder):
        self.prefix, self.key, self.recorder = prefix, key, recorder
        self.file = prefix.with_name(f"{prefix.name}.tp{recorder.rank}.partial")

    def resume(self):
        """Tokens that an earlier run recorded; ValueError if it was another recording."""
        if not self.file.exists():
            return 0
        kept = self.recorder.torch.load(self.file, weights_only=True)
        if kept["key"] != self.key:
            raise ValueError(f"{self.file} is of another model, text or settings; remove it, or run without --resume")
        self.recorder.sums, self.recorder.grams = kept["sums"], kept["grams"]
        return kept["tokens"]

    def keep(self, tokens):
        temporary = self.file.with_name(self.file.name + ".new")
        self.recorder.torch.save({"key": self.key, "tokens": tokens, "sums": self.recorder.sums, "grams": self.recorder.grams}, temporary)
        os.replace(temporary, self.file)


def agreed(counts, prefix):
    """Tokens that earlier runs of all ranks recorded; ValueError if they are not as many on each."""
    if len(set(counts)) > 1:
        raise ValueError(f"the ranks were stopped at different tokens; remove {prefix}.tp*.partial, or run without --resume")
    return counts[0]


def write(prefix, recorder):
    """PREFIX.h5 with Gram matrices, or PREFIX.tpR.pt. Returns the file and what it holds."""
    statistics = recorder.statistics()
    file = prefix.with_name(prefix.name + (".h5" if recorder.whole else f".tp{recorder.rank}.pt"))
    if not recorder.whole:
        recorder.torch.save(statistics, file)
    else:
        write_statistics(file, statistics, recorder.grams)
    return file, statistics


def write_statistics(file, statistics, grams):
    """In the form of src/stats/store.h."""
    import h5py
    import numpy

    with h5py.File(file, "w") as out:
        out.attrs["quantmill_kind"] = "statistics"
        out.attrs["quantmill_schema"] = numpy.int64(1)
        out.attrs["quantmill_version"] = "scripts/collect"
        for name, values in statistics.items():
            group = out.create_group("inputs/" + name.removeprefix("model.").replace("%", "%25").replace("/", "%2F"))
            for key in ("absmean", "sqmean", "absmax"):
                group[key] = values[key].double().numpy()
            group.attrs["count"] = numpy.uint64(values["count"])
            group.attrs["partition"] = "replicated"
            group.attrs["source"] = "scripts/collect"
            if name in grams:
                gram = (grams[name] / values["count"]).cpu().numpy()
                group["gram"] = gram[numpy.tril_indices(len(gram))].astype("<f4")
                group.attrs["gram_tokens"] = numpy.uint64(values["count"])


def coverage(statistics):
    """Lines: which experts saw how many tokens, layer by layer, and what hardly any token reached."""
    layers, lines = {}, []
    for name, values in statistics.items():
        layer, found, expert = name.partition(".experts.")
        if found and expert.split(".")[0].isdigit():
            layers.setdefault(layer, []).append(values["count"])
    for layer, counts in layers.items():
        counts.sort()
        few = sum(count < FEW_TOKENS for count in counts)
        lines.append(f"{layer}: {len(counts)} experts saw {counts[0]} to {counts[-1]} tokens, half of them {counts[len(counts) // 2]} or more"
                     + (f"; {few} fewer than {FEW_TOKENS}" if few else ""))
    unseen = [name for name, values in statistics.items() if values["count"] < FEW_TOKENS]
    if unseen:
        lines.append(f"{len(unseen)} inputs saw fewer than {FEW_TOKENS} tokens, e.g. {unseen[0]}")
    return lines
