"""Each access mode names the setting that it lacks."""

import re

import pytest

from rayhistory.access import open_access
from rayhistory.errors import InvalidSetting
from rayhistory.settings import Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(auth="token"), "--auth=token needs --access-file"),
        (Settings(auth="token", access_file="/not/there"), "--access-file=/not/there: No such file"),
        (Settings(auth="proxy", access_file="/dev/null"), "--auth=proxy needs --trusted-proxies"),
        (Settings(auth="proxy", access_file="/dev/null", trusted_proxies=("10.0.0.0/99",)), "--trusted-proxies: "),
        (Settings(auth="kubernetes"), "--auth=kubernetes needs a Kubernetes API"),
    ],
)
def test_mode_with_a_missing_setting_is_refused(settings: Settings, message: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(message)):
        open_access(settings, None)


@pytest.mark.parametrize(
    ("proxies", "secret", "warns"),
    [(("10.0.0.0/8",), "", True), (("10.0.0.1", "fd00::/64"), "", True), (("10.0.0.1", "::1"), "", False),
     (("10.0.0.0/8",), "secret", False)],
)  # fmt: skip
def test_ranges_of_trusted_proxies_are_warned_about(
    proxies: tuple[str, ...], secret: str, *, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    open_access(Settings(auth="proxy", access_file="/dev/null", trusted_proxies=proxies, proxy_secret=secret), None)
    assert any("--proxy-secret" in record.getMessage() for record in caplog.records) == warns
