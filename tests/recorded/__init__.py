"""Recordings of real Ray sessions, made once per test run, with the responses of the live dashboard."""
