"""Arguments that tools share."""

from typing import Annotated

import msgspec

from rayhistory.mcp.answer import DEFAULT_MAX_TOKENS, MAX_TOKENS

_MAX_LIMIT = 200

Session = Annotated[
    str,
    msgspec.Meta(
        description="session name, namespace/cluster, namespace/cluster/session or namespace/~rayjob/name, "
        "each with or without @time; empty for the newest session"
    ),
]
Limit = Annotated[int, msgspec.Meta(ge=1, le=_MAX_LIMIT, description="maximum number of rows")]
Tokens = Annotated[int, msgspec.Meta(ge=200, le=MAX_TOKENS, description="maximum length of the answer")]


class ToolArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    max_tokens: Tokens = DEFAULT_MAX_TOKENS
