"""One self-contained HTML page about a fit."""

from vitreous.report.page import report, write_report

__all__ = ["report", "write_report"]
