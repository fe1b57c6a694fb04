"""One real Ray session, recorded once per test run, for every test that compares a live cluster with a dead one."""
