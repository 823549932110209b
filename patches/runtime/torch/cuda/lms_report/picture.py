r"""A report as a picture, drawn by matplotlib."""

import io
import textwrap

from .palette import COMPUTE, LIGHT, ROLE, STALL
from .phase import PHASES
from .planner import IN, OUT
from .report import COURSES
from .role import ROLES
from .summary import headline
from .unit import axis, size

_INCHES = (11, 12)
_DPI = 150


class NoMatplotlibError(Exception):
    r"""matplotlib is missing or too old; the message says what to install."""


def picture(report, name="planned"):
    r"""The picture as the bytes of a PNG file.

    Args:
        report (Report): what to draw.
        name (str): the course: "planned" or "on_demand".

    Raises:
        NoMatplotlibError: matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlibError(
            "a PNG needs matplotlib: pip install matplotlib; an HTML page needs nothing"
        ) from error
    figure = Figure(figsize=_INCHES, dpi=_DPI, facecolor=LIGHT["page"])
    FigureCanvasAgg(figure)
    shared = figure.subplots(
        4, 1, gridspec_kw={"height_ratios": [3, 1.1, 2.2, 2.2], "hspace": 0.42}
    )
    figure.subplots_adjust(left=0.09, right=0.97, top=0.91, bottom=0.05)
    memory, lanes, absences, points = shared
    course = report.courses[name]
    title = dict(COURSES)[name]
    figure.text(0.09, 0.973, "Large Model Support: {}".format(title), size=15, weight="bold")
    lines = textwrap.fill(headline(report), 110)
    figure.text(0.09, 0.965, lines, size=9, color=LIGHT["muted"], verticalalignment="top")
    _memory(memory, report, course)
    _lanes(lanes, report, course)
    _absences(absences, report, course)
    _points(points, report)
    for axes in (memory, lanes, absences):
        axes.set_xlim(0, course.prediction.seconds * 1e3)
        axes.set_xlabel("time (ms)", size=9)
    for axes in shared:
        _quiet(axes)
    data = io.BytesIO()
    # Without its own name and version, the same report is the same bytes.
    figure.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def _quiet(axes):
    axes.set_facecolor(LIGHT["page"])
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LIGHT["axis"])
    axes.tick_params(colors=LIGHT["muted"], labelsize=8)
    axes.yaxis.grid(True, color=LIGHT["grid"], linewidth=0.8)
    axes.set_axisbelow(True)


def _title(axes, text):
    axes.set_title(text, loc="left", size=11, weight="bold", color=LIGHT["ink"])


def _legend(axes, **options):
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(fontsize=8, frameon=False, labelcolor=LIGHT["ink"], **options)


def _steps(curve, end, unit):
    times = [at * 1e3 for at, _ in curve] + [end * 1e3]
    return times, [count / unit for _, count in curve] + [curve[-1][1] / unit]


def _memory(axes, report, course):
    _title(axes, "Memory")
    end, limit, most = course.prediction.seconds, report.machine.limit, report.scale
    name, unit = axis(most)
    times, used = _steps(course.gpu, end, unit)
    axes.fill_between(times, used, step="post", color=LIGHT["gpu"], alpha=0.12, linewidth=0)
    axes.step(times, used, where="post", color=LIGHT["gpu"], linewidth=1.6, label="GPU")
    times, held = _steps(course.host, end, unit)
    axes.step(times, held, where="post", color=LIGHT["host"], linewidth=1.6, label="host")
    living = [
        (start.seconds, op.living_bytes)
        for start, op in zip(course.starts, report.timeline.operators)
    ]
    times, needed = _steps(living, end, unit)
    axes.step(
        times,
        needed,
        where="post",
        color=LIGHT["muted"],
        linewidth=1.2,
        linestyle=(0, (4, 2)),
        label="GPU without LMS",
    )
    label = "limit, {}{}".format(size(limit), ", above" if limit > most else "")
    axes.axhline(limit / unit, color=LIGHT["limit"], linewidth=1, label=label)
    axes.set_ylim(0, 1.15 * most / unit)
    axes.set_ylabel("memory ({})".format(name), size=9)
    _legend(axes, ncol=4, loc="upper left", bbox_to_anchor=(0, 1.0))


def _lanes(axes, report, course):
    _title(axes, "Computation and transfers")
    rows = {"GPU to host": 0, "host to GPU": 1, "operators": 2}
    spans = [(PHASES[k], "operators", COMPUTE[phase]) for k, phase in enumerate(PHASES)]
    for phase, row, color in spans:
        bars = [
            (start.seconds * 1e3, op.seconds * 1e3)
            for start, op, known in zip(course.starts, report.timeline.operators, report.phases)
            if known == phase
        ]
        if bars:
            axes.broken_barh(bars, (rows[row] - 0.36, 0.72), facecolors=color, label=phase)
    waits = [
        ((start.seconds - start.stall_seconds) * 1e3, start.stall_seconds * 1e3)
        for start in course.starts
        if start.stall_seconds > 0
    ]
    if waits:
        axes.broken_barh(waits, (rows["operators"] - 0.36, 0.72), facecolors=STALL, label="waiting")
    for kind, row, color in ((IN, "host to GPU", "in"), (OUT, "GPU to host", "out")):
        bars = [
            (transfer.begin * 1e3, (transfer.end - transfer.begin) * 1e3)
            for transfer in course.transfers
            if transfer.kind == kind
        ]
        if bars:
            axes.broken_barh(bars, (rows[row] - 0.36, 0.72), facecolors=LIGHT[color])
    axes.set_ylim(-0.5, 2.5)
    axes.set_yticks(list(rows.values()))
    axes.set_yticklabels(list(rows))
    _legend(axes, ncol=4, loc="lower right", bbox_to_anchor=(1, 0.98))


def _absences(axes, report, course):
    _title(axes, "What is out")
    blocks = report.timeline.blocks
    most = max([a.offset + blocks[a.block].bytes for a in course.absences] or [1])
    name, unit = axis(most)
    for role in ROLES:
        chosen = [a for a in course.absences if report.roles[a.block] == role]
        for number, absence in enumerate(chosen):
            count = blocks[absence.block].bytes
            axes.broken_barh(
                [(absence.begin * 1e3, (absence.end - absence.begin) * 1e3)],
                (absence.offset / unit, count / unit),
                facecolors=ROLE[role],
                edgecolor=LIGHT["page"],
                # Around a thin one, nothing would be left of it.
                linewidth=0.4 if count > most / 100 else 0,
                label=None if number else role,
            )
    if not course.absences:
        axes.text(0.5, 0.5, "nothing", transform=axes.transAxes, color=LIGHT["muted"])
    axes.set_ylim(0, most * 1.08 / unit)
    axes.set_ylabel("not on the GPU ({})".format(name), size=9)
    _legend(axes, ncol=6, loc="lower right", bbox_to_anchor=(1, 0.98))


def _points(axes, report):
    _title(axes, "Time of an iteration by GPU memory")
    points = [point for point in report.points if point.simulation is not None]
    name, unit = axis(max(point.gpu_memory for point in points))
    memory = [point.gpu_memory / unit for point in points]
    for course, color, label in (
        ("on_demand", LIGHT["host"], "transfers on demand"),
        ("planned", LIGHT["gpu"], "planned transfers"),
    ):
        times = [getattr(point.simulation, course).seconds * 1e3 for point in points]
        axes.plot(
            memory, times, color=color, linewidth=1.8, marker="o", markersize=3.5, label=label
        )
    bound = [point.simulation.bound_seconds * 1e3 for point in points]
    axes.plot(
        memory,
        bound,
        color=LIGHT["muted"],
        linewidth=1.2,
        linestyle=(0, (4, 2)),
        label="lower bound",
    )
    if report.gpu_memory in [point.gpu_memory for point in points]:
        axes.axvline(report.gpu_memory / unit, color=LIGHT["limit"], linewidth=1, label="this GPU")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time (ms)", size=9)
    axes.set_xlabel("GPU memory ({})".format(name), size=9)
    _legend(axes, loc="upper right")
