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
        (Settings(auth="kubernetes"), "--auth=kubernetes needs Kubernetes"),
    ],
)
def test_mode_with_a_missing_setting_is_refused(settings: Settings, message: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(message)):
        open_access(settings, None)
