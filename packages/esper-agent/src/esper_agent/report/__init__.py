"""The report of a run: one page of HTML that needs nothing but itself."""

from esper_agent.report.build import write_report

__all__ = ["write_report"]
