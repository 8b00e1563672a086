#!/usr/bin/env python3
"""Draws the benchmarks' results and puts their tables into docs/performance.md.

    bench/plot.py DIRECTORY [--document FILE]

DIRECTORY holds what `bench/run_all` wrote: overhead.json, latency.json, latency-8.json, scaling.json, churn.json and
machine.json; what is missing is left out. The drawings (SVG) go there too. In FILE everything between
`<!-- begin NAME -->` and `<!-- end NAME -->` is replaced by the table of that name.

Needs gnuplot (Debian's gnuplot-nox), for the drawings only. (Debian 12's python3-matplotlib cannot be installed beside
libboost1.81-dev, which the build needs.)
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

COLOURS = ["#1b6ca8", "#d1495b", "#2e8b57", "#e0a030", "#7a5195", "#555555"]


def load(directory, name):
    path = directory / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def draw(path, width, height, commands):
    script = [
        f'set terminal svg size {width},{height} dynamic font "sans-serif,13" background "#ffffff"',
        f'set output "{path}"',
        'set border 3 lc rgb "#444444"',
        "set tics nomirror",
        'set grid lc rgb "#dddddd"',
        "set key left top reverse Left",
    ] + commands
    subprocess.run(["gnuplot", "-"], input="\n".join(script) + "\n", text=True, check=True)
    # Only names in it depend on the time of drawing.
    print(f"drawn: {path.name}")


def block(name, rows):
    """Rows of numbers as a gnuplot data block."""
    lines = [" ".join("NaN" if value is None else str(value) for value in row) for row in rows]
    return [f"${name} << EOD"] + lines + ["EOD"]


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def number(value, digits=1):
    return "" if value is None else f"{value:.{digits}f}"


# --- overhead


def overhead_table(data):
    rows = [
        [v["name"], number(v["prefill"]), number(v["prefill_ratio"], 3), number(v["decode"]), number(v["decode_ratio"], 3)]
        for v in data["variants"]
    ]
    return table(["", "prefill tokens/s", "ratio", "decode tokens/s", "ratio"], rows)


# --- latency


def cells_of(data):
    return {(c["engine"], c["rtt_ms"], c["batch"]): c for c in data["cells"]}


def axes_of(data):
    rtts = sorted({c["rtt_ms"] for c in data["cells"]})
    batches = sorted({c["batch"] for c in data["cells"]})
    return rtts, batches


def latency_table(data):
    cells = cells_of(data)
    rtts, batches = axes_of(data)
    rows = []
    for rtt in rtts:
        for batch in batches:
            ours, stock = cells["kvasir", rtt, batch], cells["rpc", rtt, batch]
            limit = None
            if "compute_ms" in ours:
                limit = 1.05 * ours["round_trips_ms"] + ours["compute_ms"]
            rows.append(
                [
                    number(rtt, 0),
                    number(ours["echo_ms"], 2),
                    batch,
                    number(ours["tokens_per_second"]),
                    number(stock["tokens_per_second"]),
                    number(ours["step_ms"]),
                    number(ours["round_trips_ms"], 0),
                    number(ours.get("compute_ms")),
                    number(ours.get("rest_ms")),
                    "" if limit is None or rtt == 0 else ("yes" if ours["step_ms"] <= limit else "no"),
                    number(ours.get("round_trips_per_layer"), 2),
                    number(stock.get("round_trips_per_layer"), 2),
                    number(ours["turns_per_layer"], 2),
                    number(stock["turns_per_layer"], 2),
                    number(ours["counts"]["worker_rows_per_second"], 0),
                ]
            )
    head = ["RTT ms", "echo ms", "batch", "Kvasir tokens/s", "stock RPC tokens/s", "step ms", "round trips", "compute", "rest"]
    head += ["within target", "added, Kvasir", "added, RPC", "counted, Kvasir", "counted, RPC", "a worker's rows/s"]
    return table(head, rows)


def draw_latency(data, directory, name):
    cells = cells_of(data)
    rtts, batches = axes_of(data)
    commands, plots = [], []
    for i, batch in enumerate(batches):
        for engine, dash in (("kvasir", 1), ("rpc", 2)):
            rows = [[rtt, cells[engine, rtt, batch]["tokens_per_second"]] for rtt in rtts]
            commands += block(f"{engine}{batch}", rows)
            title = f"Kvasir, batch {batch}" if engine == "kvasir" else f"stock RPC, batch {batch}"
            plots.append(
                f'${engine}{batch} using 1:2 with linespoints lw 2 dt {dash} pt {7 if dash == 1 else 6} ps 0.6 '
                f'lc rgb "{COLOURS[i]}" title "{title}"'
            )
    commands += [
        "set logscale y",
        'set xlabel "round-trip time, ms"',
        'set ylabel "tokens per second, all sequences"',
        "set key outside right top",
        "plot " + ", ".join(plots),
    ]
    draw(directory / f"{name}.svg", 820, 440, commands)


def draw_steps(data, directory, name):
    """Where the time of a step goes: stacked bars, Kvasir beside stock RPC."""
    cells = cells_of(data)
    rtts, batches = axes_of(data)
    batch = batches[0]
    rows, labels, at = [], [], 0
    for rtt in rtts:
        for engine, label in (("kvasir", "K"), ("rpc", "R")):
            cell = cells[engine, rtt, batch]
            compute = cell.get("compute_ms", cell["step_ms"])
            rows.append([at, cell["round_trips_ms"], compute, max(0.0, cell["step_ms"] - cell["round_trips_ms"] - compute)])
            labels.append(f'"{label}\\n{rtt:.0f} ms" {at}')
            at += 1
        at += 0.6
    commands = block("steps", rows)
    commands += [
        "set style fill solid 0.85",
        "set boxwidth 0.8",
        "set bmargin 4",
        f"set xtics ({', '.join(labels)})",
        'set ylabel "one step, ms"',
        f'set title "batch {batch}: Kvasir (K) and stock RPC (R) by round-trip time" font ",13"',
        "set yrange [0:*]",
        "plot $steps using 1:($2+$3+$4) with boxes lc rgb "
        f'"{COLOURS[1]}" title "the rest", '
        f'$steps using 1:($2+$3) with boxes lc rgb "{COLOURS[0]}" title "one round trip per layer", '
        f'$steps using 1:3 with boxes lc rgb "{COLOURS[3]}" title "compute (the step without delay)"',
    ]
    draw(directory / f"{name}.svg", 820, 400, commands)


# --- scaling


def scaling_table(data):
    first = data["swarms"][0]["tokens_per_second"]
    rows = []
    for swarm in data["swarms"]:
        limit = swarm.get("limit_tokens_per_second")
        counts = swarm["counts"]
        here = counts["local_rows"] + counts["fallback_rows"]
        rows.append(
            [
                swarm["workers"],
                number(swarm["rows_per_second"], 0) if swarm["rows_per_second"] else "no limit",
                number(swarm["tokens_per_second"]),
                number(swarm["tokens_per_second"] / first, 2),
                number(limit),
                f"{100 * swarm['used']:.0f}%" if limit else "",
                f"{100 * here / max(1, here + counts['worker_rows']):.1f}%",
            ]
        )
    return table(["workers", "rows/s each", "tokens/s", "speedup", "limits allow", "used", "rows computed by the backbone"], rows)


def draw_scaling(data, directory):
    paced = [s for s in data["swarms"] if s["rows_per_second"]]
    free = [s for s in data["swarms"] if not s["rows_per_second"]]
    commands = block("measured", [[s["workers"], s["tokens_per_second"]] for s in paced])
    commands += block("limit", [[s["workers"], s["limit_tokens_per_second"]] for s in paced])
    plots = [
        f'$limit using 1:2 with lines lw 2 dt 2 lc rgb "{COLOURS[5]}" title "what the workers\' limits allow"',
        f'$measured using 1:2 with linespoints lw 2 pt 7 lc rgb "{COLOURS[0]}" title "measured"',
    ]
    if free:
        plots.append(f'{free[0]["tokens_per_second"]} lw 1 dt 3 lc rgb "{COLOURS[1]}" title "this machine, no limits"')
    commands += [
        "set logscale xy 2",
        "set xtics (" + ", ".join(str(s["workers"]) for s in paced) + ")",
        'set xlabel "paced workers"',
        'set ylabel "tokens per second"',
        "plot " + ", ".join(plots),
    ]
    draw(directory / "scaling.svg", 700, 400, commands)


# --- churn


def churn_table(data):
    names = {"kill": "killed (SIGKILL)", "stop": "silent (SIGSTOP)"}
    rows = [
        [
            names[o["how"]],
            f"{o['workers_gone']} ({o['percent']}%)",
            number(o["before"]),
            number(o["during"]),
            number(o["after"]),
            number(1e3 * o["longest_gap_s"], 0),
            number(1e3 * o["lost_s"], 0),
        ]
        for o in data["outcomes"]
    ]
    return table(["workers", "gone", "before", "first 2 s", "after", "longest gap ms", "time lost ms"], rows)


def draw_churn(data, directory):
    commands = ["set multiplot layout 1,2", 'set xlabel "s"', "set yrange [0:*]", "set key right bottom"]
    commands += ["set arrow from 0, graph 0 to 0, graph 1 nohead dt 2 lc rgb '#888888'"]
    for how, title in (("kill", "killed at 0 s"), ("stop", "silent from 0 s")):
        plots = []
        for i, outcome in enumerate(o for o in data["outcomes"] if o["how"] == how):
            name = f"{how}{outcome['percent']}"
            # The middle of each bin.
            width = outcome["timeline"][1][0] - outcome["timeline"][0][0]
            commands += block(name, [[at + width / 2, speed] for at, speed in outcome["timeline"]])
            plots.append(f'${name} using 1:2 with lines lw 2 lc rgb "{COLOURS[i]}" title "{outcome["percent"]}%"')
        if plots:
            commands += [f'set title "{title}"', 'set ylabel "tokens per second"', "plot " + ", ".join(plots)]
    commands.append("unset multiplot")
    draw(directory / "churn.svg", 900, 360, commands)


# --- the document


def machine_line(data):
    return f"Measured on {data['processor']}, {data['cores']} cores, with the demo model, {data['date']}."


def put_into(document, name, text):
    pattern = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda found: found[1] + text + "\n" + found[2], document)
    if count != 1:
        sys.exit(f"plot.py: the document has no place, or several, for {name}")
    return replaced


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--document", type=pathlib.Path)
    chosen = parser.parse_args()

    tables = {}
    for name, make in (
        ("machine", machine_line),
        ("overhead", overhead_table),
        ("latency", latency_table),
        ("latency-8", latency_table),
        ("scaling", scaling_table),
        ("churn", churn_table),
    ):
        data = load(chosen.directory, name)
        if data is None:
            continue
        tables[name] = make(data)
        try:
            if name == "latency":
                draw_latency(data, chosen.directory, name)
                draw_steps(data, chosen.directory, "latency-steps")
            if name == "scaling":
                draw_scaling(data, chosen.directory)
            if name == "churn":
                draw_churn(data, chosen.directory)
        except FileNotFoundError:
            sys.exit("plot.py: gnuplot is missing; install Debian's gnuplot-nox")

    if chosen.document:
        text = chosen.document.read_text()
        for name, made in tables.items():
            text = put_into(text, name, made)
        chosen.document.write_text(text)
        print(f"tables put into {chosen.document}")
    else:
        for name, made in tables.items():
            print(f"\n{name}\n\n{made}")


if __name__ == "__main__":
    main()
