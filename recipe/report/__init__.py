"""`report.html`: everything that a run's folder tells, as one page that opens anywhere, without a network."""

from __future__ import annotations

from recipe.report.report_file import REPORT_FILE, bring_up_to_date, reported, write_report

__all__ = ["REPORT_FILE", "bring_up_to_date", "reported", "write_report"]
