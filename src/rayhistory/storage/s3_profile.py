"""AWS profile files, which obstore does not read."""

import configparser
from collections.abc import Callable
from pathlib import Path

from rayhistory.errors import InvalidSetting

Credentials = tuple[str, str, str]


def read_profile(environment: Callable[[str], str]) -> Credentials | None:
    """Return key, secret and token of the selected profile, or None if it has none."""
    name = environment("AWS_PROFILE") or environment("AWS_DEFAULT_PROFILE")
    home = Path("~/.aws").expanduser()
    credentials = Path(environment("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    config = Path(environment("AWS_CONFIG_FILE") or home / "config")
    wanted = name or "default"
    section: dict[str, str] = {}
    for path, title in ((config, "default" if wanted == "default" else f"profile {wanted}"), (credentials, wanted)):
        section |= _section(path, title)
    key, secret = section.get("aws_access_key_id", ""), section.get("aws_secret_access_key", "")
    if key and secret:
        return key, secret, section.get("aws_session_token", "")
    if name and not section:
        raise InvalidSetting(f"AWS_PROFILE={name}: no such profile in {credentials} or {config}")
    if name:
        export = 'eval "$(aws configure export-credentials --format env)"'
        raise InvalidSetting(f"AWS_PROFILE={name}: the profile has no static keys; export them first: {export}")
    return None


def _section(path: Path, title: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text())
    except OSError:
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{path}: invalid profile file ({str(error).splitlines()[0]})") from None
    return dict(parser[title]) if parser.has_section(title) else {}
