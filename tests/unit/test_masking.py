"""Values of environment variables are masked wherever a runtime environment may be."""

import json

from rayhistory.masking import MASK, mask_env_vars, mask_env_vars_in_lines, mask_env_vars_json

RUNTIME_ENV = {"env_vars": {"TOKEN": "secret"}, "pip": ["x"]}
MASKED = {"env_vars": {"TOKEN": MASK}, "pip": ["x"]}


def test_values_are_masked_at_any_depth_and_in_nested_json() -> None:
    assert mask_env_vars(RUNTIME_ENV) == MASKED
    assert mask_env_vars([{"runtime_env": RUNTIME_ENV}]) == [{"runtime_env": MASKED}]
    assert mask_env_vars({"envVars": {"TOKEN": "secret"}}) == {"envVars": {"TOKEN": MASK}}
    nested = mask_env_vars({"serializedRuntimeEnv": json.dumps({"inner": json.dumps(RUNTIME_ENV)})})
    assert "secret" not in json.dumps(nested)
    assert json.loads(json.loads(nested["serializedRuntimeEnv"])["inner"]) == MASKED


def test_other_values_are_unchanged() -> None:
    for value in ({"env": {"A": "1"}}, "talks about env_vars", {"env_vars": None}, 7, None, ["env_vars"]):
        assert mask_env_vars(value) == value


def test_lines_without_environment_variables_keep_their_bytes() -> None:
    lines = [b'{"a":  1.50}', json.dumps({"runtime_env": RUNTIME_ENV}).encode(), b"not json, env_vars", b""]
    masked = mask_env_vars_in_lines(b"\n".join(lines)).split(b"\n")
    assert masked == [lines[0], json.dumps({"runtime_env": MASKED}).replace(": ", ":").replace(", ", ",").encode(),
                      lines[2], b""]  # fmt: skip


def test_unreadable_runtime_environment_is_hidden() -> None:
    assert mask_env_vars_json('{"env_vars": {"TOKEN": "secret"') == MASK
    deep = "[" * 900 + json.dumps(RUNTIME_ENV) + "]" * 900
    assert "secret" not in str(mask_env_vars_json(deep))
    assert "secret" not in json.dumps(mask_env_vars({"x": [json.loads(deep)]}))
