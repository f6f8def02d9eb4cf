#!/usr/bin/env python3
"""Draws balance.svg, the figure of docs/moe.md, from the metrics of its four runs, and prints their loads.

The runs are those of docs/moe.md, section Balance: docs/images/make_balance.py runs
"""
import json
import pathlib
import sys

RUNS = {  # the run's folder: what it is called, and its colour
    "none": ("none", "#d1495b"),
    "aux_loss": ("auxiliary loss, 0.1", "#3366cc"),
    "expert_bias": ("loss-free bias, rate 0.01", "#2a9d5c"),
    "quantile_balancing": ("quantile balancing", "#b07aa1"),
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 380, 56, 36, 44
RIGHT = 200  # for names
BOUND, SPAN = 1.3, 10  # steps of a mean


def loads(folder):
    """(step, the busiest expert's assignments over the mean, in the worst layer) of every step."""
    found = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if "load_max_over_mean" in event:
            found.append((event["step"], event["load_max_over_mean"]))
    return found


def smooth(curve):
    return [(step, sum(load for _, load in curve[max(0, i + 1 - SPAN):i + 1]) / min(i + 1, SPAN))
            for i, (step, _) in enumerate(curve)]


def main(runs):
    curves = {run: smooth(loads(pathlib.Path(runs) / run)) for run in RUNS}
    last = max(step for curve in curves.values() for step, _ in curve)
    top = max(load for curve in curves.values() for _, load in curve)
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last
    y = lambda load: TOP + (HEIGHT - TOP - BOTTOM) * (top - load) / (top - 1)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">Busiest expert: assignments over the mean, worst layer '
           f'(mean of {SPAN} steps)</text>']
    marks = [1 + 0.5 * i for i in range(int((top - 1) / 0.5) + 1)]
    for load in marks:
        svg.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(load):.1f}" y2="{y(load):.1f}" stroke="#e4e4e4"/>'
                   f'<text x="{LEFT - 8}" y="{y(load) + 4:.1f}" text-anchor="end">{load:g}</text>')
    for step in range(0, last + 1, 50):
        svg.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>')
    svg.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(BOUND):.1f}" y2="{y(BOUND):.1f}" stroke="#777" '
               f'stroke-dasharray="4 4"/><text x="{WIDTH - RIGHT - 4}" y="{y(BOUND) - 4:.1f}" text-anchor="end" '
               f'fill="#777">{BOUND}</text>')
    for i, (run, (name, colour)) in enumerate(RUNS.items()):
        points = " ".join(f"{x(step):.1f},{y(load):.1f}" for step, load in curves[run])
        svg.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        at = TOP + 16 + 22 * i
        svg.append(f'<line x1="{WIDTH - RIGHT + 12}" x2="{WIDTH - RIGHT + 36}" y1="{at}" y2="{at}" stroke="{colour}" '
                   f'stroke-width="3"/><text x="{WIDTH - RIGHT + 42}" y="{at + 4}">{name}</text>')
        peak = max(range(len(curves[run])), key=lambda at: curves[run][at][1])
        within = next((step for step, load in curves[run][peak:] if load < BOUND), None)
        tail = [load for step, load in loads(pathlib.Path(runs) / run) if step > last - 50]
        print(f"{name}: below {BOUND} again at step {within}, mean of the last 50 steps {sum(tail) / len(tail):.2f}")
    (pathlib.Path(__file__).parent / "balance.svg").write_text("\n".join(svg + ["</svg>"]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
