"""One self-contained HTML page of experiments: claims, interactive charts, tables, pictures."""

from pcfed.report.page import write_report

__all__ = ["write_report"]
