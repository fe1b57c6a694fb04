"""AWS's profile files, of which obstore knows nothing."""

import configparser
from collections.abc import Callable
from pathlib import Path

from rayhistory.errors import Misconfigured

Credentials = tuple[str, str, str]


def read_profile(environment: Callable[[str], str]) -> Credentials | None:
    """Key, secret and token of the chosen profile; None where there is no profile that has them."""
    name = environment("AWS_PROFILE") or environment("AWS_DEFAULT_PROFILE")
    home = Path("~/.aws").expanduser()
    credentials = Path(environment("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    general = Path(environment("AWS_CONFIG_FILE") or home / "config")
    wanted = name or "default"
    section: dict[str, str] = {}
    for path, title in ((general, "default" if wanted == "default" else f"profile {wanted}"), (credentials, wanted)):
        section |= _section(path, title)
    key, secret = section.get("aws_access_key_id", ""), section.get("aws_secret_access_key", "")
    if key and secret:
        return key, secret, section.get("aws_session_token", "")
    if name and not section:
        raise Misconfigured(f"AWS_PROFILE={name}: no such profile in {credentials} or {general}")
    if name:
        export = 'eval "$(aws configure export-credentials --format env)"'
        raise Misconfigured(f"AWS_PROFILE={name}: has no keys of its own; export them first: {export}")
    return None


def _section(path: Path, title: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text())
    except OSError:
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: not a profile file ({str(error).splitlines()[0]})") from None
    return dict(parser[title]) if parser.has_section(title) else {}
