"""What was measured, as a table to look at, as the tables of docs/quality.md and as its picture."""
import math
import re
import subprocess

import bench_support
import methods
import peers
import pictures
from environments import ROOT
from methods import SEED, TABLE, UNQUANTIZED

DOCUMENT, PICTURE = ROOT / "docs" / "quality.md", ROOT / "docs" / "quality.svg"
BEGIN, END = "<!-- measured: tests/quality/run --write-documents -->", "<!-- end of what was measured -->"
OBJECTIVES = ("w4a16", "w4a4")
TEXTS = {"constitution": (0, 4), "New Testament": (3, 11), "Perl": (1, 6, 7, 8), "Python": (2, 5, 9, 10)}  # rows of the evaluation
BASELINE = "the script"


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def ratio(pairs):
    return sum(a[0] for a, _ in pairs) / sum(b[0] for _, b in pairs)


def spread(pairs):
    """The standard error of the ratio, texts left out one by one."""
    without = [ratio(pairs[:n] + pairs[n + 1:]) for n in range(len(pairs))]
    return math.sqrt((len(pairs) - 1) * mean((value - mean(without)) ** 2 for value in without))


def quality(rows, name, objective):
    pairs = list(zip(rows[name][objective], rows[SEED][objective]))
    if name == UNQUANTIZED and objective == "w4a16":  # nothing but the half precision of the original's
        pairs = [((0, loss), b) for (_, loss), b in pairs]
    ours = [a for a, _ in pairs]
    exact = not sum(kl for kl, _ in ours)
    return {"kl": mean(kl for kl, _ in ours), "ratio": ratio(pairs), "spread": spread(pairs), "held out": ratio(pairs[1::2] or pairs),
            "geometric": 0 if exact else math.exp(mean(math.log(a[0] / b[0]) for a, b in pairs)),
            "perplexity": math.exp(mean(loss for _, loss in ours)), "largest": 0 if exact else max(kl for kl, _ in ours) / sum(kl for kl, _ in ours),
            "texts": {} if len(pairs) < 12 else {text: ratio([pairs[n] for n in numbers]) for text, numbers in TEXTS.items()}}


def seconds(row, with_imports=True):
    """CPU seconds for 10⁹ weights."""
    used = row["cost"]["cpu_seconds"] - (0 if with_imports else row["cost"]["cpu_seconds_before"] or 0)
    return used / row["quantized"] * 1e9


def print_rows(rows, names):
    print(f"\n{'':26} {'W4A16: KL':>9} {'ratio':>6} {'odd':>5} {'geo':>5} {'ppl':>6}  {'W4A4: KL':>8} {'ratio':>6} {'odd':>5} {'geo':>5} "
          f"{'ppl':>6}  CPU s/1e9     MB")
    for name in names:
        if name not in rows or SEED not in rows:
            continue
        line = f"{name:26}"
        for objective in OBJECTIVES:
            found = quality(rows, name, objective)
            line += f"  {found['kl']:8.4f} {found['ratio']:6.3f} {found['held out']:5.3f} {found['geometric']:5.3f} {found['perplexity']:6.2f}"
        cost = rows[name]["cost"]
        print(line + (f"  {seconds(rows[name]):9.1f} {cost['peak_mb']:6.0f}" if cost else ""), flush=True)


def title(name):
    """As users know it: a recipe with its options."""
    method = TABLE[name]
    if "--recipe" not in method.options:
        return BASELINE if name == SEED else name
    return f"`{' '.join(method.options[1:])}`" + (f", {method.sequences} sequences" if method.sequences < methods.ALL else "")


def table(head, lines):
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *("| " + " | ".join(line) + " |" for line in lines), ""]


def by_objective(rows, cells):
    """Lines of a table: of each method its title, and for each objective the cells made of its quality."""
    return [[title(name), *(cell for objective in OBJECTIVES for cell in cells(quality(rows, name, objective)))] for name in TABLE]


def quality_table(rows):
    lines = by_objective(rows, lambda found: [f"{found['kl']:.3f}", f"{found['ratio']:.2f} ± {found['spread']:.2f}", f"{found['held out']:.2f}",
                                              f"{found['perplexity']:.1f}"])
    return table(["", "W4A16: KL", "ratio", "held out", "perplexity", "W4A4: KL", "ratio", "held out", "perplexity"], lines)


def recorded(results, name):
    """CPU seconds for 10⁹ weights that recording a method's statistics takes, by what all recordings took for a sequence."""
    method, row = TABLE[name], results["rows"][name]
    if method.program not in ("quantmill", SEED) or not method.sequences or not results["statistics"]:
        return None
    used = sum(found["cpu_seconds"] - (0 if methods.rounds_by_gptq(method) else found["gram_cpu_seconds"]) for found in results["statistics"].values())
    return used / sum(int(count) for count in results["statistics"]) * method.sequences / row["quantized"] * 1e9


def cost_table(results):
    lines = []
    for name, method in TABLE.items():
        row = results["rows"][name]
        if not row["cost"]:
            continue
        before = row["cost"]["peak_mb_before"]
        alone = seconds(row, with_imports=False)
        statistics = recorded(results, name)
        lines.append([title(name), str(method.sequences or ""), f"{seconds(row):,.0f}", f"{alone:,.0f}" if before else "",
                      f"{alone + statistics:,.0f}" if statistics else "", f"{row['cost']['peak_mb']:,.0f}", f"{before:,.0f}" if before else ""])
    return table(["", "sequences", "CPU s for 10⁹ weights", "without imports", "with recording statistics", "peak MB", "of these imports"], lines)


def text_table(rows):
    lines = by_objective(rows, lambda found: [*(f"{value:.2f}" for value in found["texts"].values()),
                                              f"{100 * found['largest']:.0f} %" if found["largest"] else ""])
    return table(["", *(f"{'W4A16' if objective == 'w4a16' else 'W4A4'}: {text}" if text == next(iter(TEXTS)) else text for objective in OBJECTIVES
                        for text in [*TEXTS, "largest share"])], lines)


def compared(rows):
    """Our best beside the best of other programs, in words."""
    lines = []
    for objective in OBJECTIVES:
        kl = {name: quality(rows, name, objective)["kl"] for name in TABLE if name not in (SEED, UNQUANTIZED)}
        other = min((name for name in kl if TABLE[name].program != "quantmill"), key=kl.get)
        ours = [name for name in kl if name.startswith("mxfp4-")]
        lines.append(f"- {objective.upper()}, least of another program: {other}. KL in ratio to it: "
                     + ", ".join(f"{title(name)} {kl[name] / kl[other]:.2f}" for name in ours) + ".")
    return lines


def picture(results):
    rows, panels = results["rows"], []
    for objective, heading in (("w4a16", "W4A16: activations in BF16"), ("w4a4", "W4A4: activations in MXFP4 too")):
        values = []
        for name in TABLE:
            if rows[name]["cost"]:
                alone, statistics = seconds(rows[name], with_imports=False), recorded(results, name)
                values.append((BASELINE if name == SEED else name, alone, quality(rows, name, objective)["kl"], statistics and alone + statistics))
        floor = [("weights in BF16", quality(rows, UNQUANTIZED, objective)["kl"])] if objective == "w4a4" else []
        panels.append((heading, values, floor))
    return pictures.points("SmolLM2-135M in MXFP4: mean KL divergence from the original, and what it costs", panels,
                           "CPU seconds for 10⁹ weights, without imports; bars: and with recording statistics", "s")


def write_documents(results):
    rows = results["rows"]
    short = [name for name in TABLE if name not in rows or len(rows[name]["w4a16"]) < 12]
    if short:
        raise SystemExit(f"not all rows of {', '.join(short)} were measured")
    version = subprocess.run([methods.QUANTMILL, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    versions = ", ".join(package.replace("==", " ") for package in peers.PACKAGES if package.startswith(tuple(peers.PROGRAMS)) or "llmc" in package)
    made = [BEGIN, f"{bench_support.describe(results['machine']).partition(';')[0]}. {version}, {versions}.", "", *quality_table(rows), *compared(rows), "",
            "![KL divergence beside cost](quality.svg)", "", "## What it costs", *cost_table(results), "## Text by text",
            "The ratio on the texts of each document, and how much of the sum over all twelve the text that loses most has.", "", *text_table(rows), END]
    document = DOCUMENT.read_text()
    kept = re.split(f"{BEGIN}.*{END}", document, flags=re.DOTALL)
    if len(kept) != 2:
        raise SystemExit(f"{DOCUMENT} does not say where the tables are: {BEGIN} … {END}")
    DOCUMENT.write_text("\n".join(made).join(kept))
    PICTURE.write_text(picture(results))
