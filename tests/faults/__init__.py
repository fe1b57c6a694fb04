"""Fault injection: seeded fault schedules against real processes, and one test per fault that was found."""
