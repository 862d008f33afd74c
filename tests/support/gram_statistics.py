"""Statistics files with Gram matrices, in the form that src/stats/store.h states; needs h5py."""
import h5py
import numpy as np


def write_statistics(file, inputs, grams=True):
    """inputs: name -> tokens [T, K]. Returns name -> mean of x x^T, as stored in float32."""
    kept = {}
    with h5py.File(file, "w") as out:
        out.attrs["quantmill_kind"] = "statistics"
        out.attrs["quantmill_schema"] = np.int64(1)
        out.attrs["quantmill_version"] = "0"
        for name, tokens in inputs.items():
            tokens = tokens.astype(float)
            group = out.create_group("inputs/" + name.replace("%", "%25").replace("/", "%2F"))
            group["absmean"] = np.abs(tokens).mean(0)
            group["sqmean"] = (tokens ** 2).mean(0)
            group["absmax"] = np.abs(tokens).max(0)
            group.attrs["count"] = np.uint64(len(tokens))
            group.attrs["partition"] = "replicated"
            group.attrs["source"] = "test"
            if grams:
                gram = (tokens.T @ tokens / len(tokens)).astype("<f4")
                group["gram"] = gram[np.tril_indices(len(gram))]
                group.attrs["gram_tokens"] = np.uint64(len(tokens))
                kept[name] = np.tril(gram) + np.tril(gram, -1).T
    return kept
