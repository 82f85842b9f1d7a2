"""The report as one HTML file: tables and figures, no script, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from simsd.benchmark import plots
from simsd.benchmark.report import Report, tables

FIGURES = {
    "speed": ("Speed against ordinary decoding on the static schedule, with quartiles", plots.speed),
    "forward": ("Tokens of the text for each forward of the target", plots.tokens_per_forward),
    "time": ("Milliseconds for each token, by part of a round", plots.time_per_token),
}


def page(report: Report, title: str = "simsd bench") -> str:
    """A self-contained page. All text is escaped, and the policy allows this page's style alone.

    Raises ConfigError where matplotlib is missing.
    """
    style = Markup(_part("page.css"))
    figures = [(meaning, Markup(plots.svg(draw(report.rows), name))) for name, (meaning, draw) in FIGURES.items()]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_part("page.html")).render(
        title=title, style=style, policy=_policy(style), report=report, tables=tables(report), figures=figures
    )


def _part(name: str) -> str:
    return (resources.files("simsd.benchmark") / name).read_text("utf-8").replace("\r\n", "\n")


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
