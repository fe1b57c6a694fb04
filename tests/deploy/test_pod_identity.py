"""The script that creates roles on EKS, with doubles of `aws` and `kubectl` that record their arguments."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.files import DEPLOY, clean_environment

SCRIPT = DEPLOY / "eks/pod-identity.sh"
VARIABLES = {
    "ACCOUNT_ID": "123456789012",
    "AWS_REGION": "eu-central-1",
    "BUCKET": "a-bucket",
    "EKS_CLUSTER_NAME": "ray",
    "HISTORY_NAMESPACE": "ray-history",
    "PREFIX": "ray/",
    "ROLE": "ray-history-ray-eu-central-1",
}
RECORD = """#!/usr/bin/env bash
words=("${0##*/}" "$@")
(IFS=$'\\x1f'; printf '%s\\x1e' "${words[*]}" >> "$STATE/calls")
"""
AWS = """
role="$STATE/$4"
association="$STATE/$8-${10-}"
case "$1 $2" in
  "iam get-role") cat "$role" ;;
  "iam create-role") echo "$6" > "$role" ;;
  "iam put-role-policy") [[ -z ${DENIED-} ]] ;;
  "eks list-pod-identity-associations") cat "$association" 2>/dev/null || echo None ;;
  "eks create-pod-identity-association") echo a-123 > "$association" ;;
esac
"""


class Account:
    """An account of AWS that remembers roles and associations in files, and the calls."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name, text in (("aws", AWS), ("kubectl", "")):
            (directory / name).write_text(RECORD + text)
            (directory / name).chmod(0o755)

    def run(self, *namespaces: str, unset: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{self._directory}:{os.environ['PATH']}", "STATE": str(self._directory)}
        environment = clean_environment() | VARIABLES | path | variables
        environment.pop(unset, None)
        return subprocess.run(
            [SCRIPT, *namespaces], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def calls(self, *words: str) -> list[list[str]]:
        """Return the calls that begin with these words."""
        recorded = (self._directory / "calls").read_text().split("\x1e")[:-1]
        return [call for each in recorded if (call := each.split("\x1f"))[: len(words)] == list(words)]


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path)


def document(call: list[str], flag: str) -> Any:
    return json.loads(call[call.index(flag) + 1])


def test_roles_are_named_after_the_cluster_and_trust_its_pods_only(account: Account) -> None:
    done = account.run("team-a", "team-b")
    assert done.returncode == 0, done.stderr
    created = account.calls("aws", "iam", "create-role")
    names = [f"{VARIABLES['ROLE']}-{program}" for program in ("collector", "server", "retention")]
    assert [call[4] for call in created] == names
    for call in created:
        (statement,) = document(call, "--assume-role-policy-document")["Statement"]
        cluster = statement["Condition"]["StringEquals"]["aws:RequestTag/eks-cluster-arn"]
        assert cluster == "arn:aws:eks:eu-central-1:123456789012:cluster/ray"


def test_collectors_may_write_below_the_namespace_of_their_pod(account: Account) -> None:
    account.run("team-a")
    policy = document(account.calls("aws", "iam", "put-role-policy")[0], "--policy-document")
    resources = policy["Statement"][0]["Resource"]
    namespace = "${aws:PrincipalTag/kubernetes-namespace}"
    assert f"arn:aws:s3:::a-bucket/ray/ray-history/logs/{namespace}/*" in resources
    assert all(namespace in resource for resource in resources)


def test_every_namespace_is_created_before_its_account_is_associated(account: Account) -> None:
    account.run("team-a", "team-b")
    calls = [" ".join(call) for call in account.calls()]
    for team in ("team-a", "team-b"):
        created, applied, associated = (
            next(number for number, call in enumerate(calls) if start in call)
            for start in (
                f"kubectl create namespace {team} ",
                f"kubectl -n {team} apply",
                f"create-pod-identity-association --cluster-name ray --region eu-central-1 --namespace {team} ",
            )
        )
        assert created < applied < associated


def test_repeated_run_keeps_roles_and_associations(account: Account) -> None:
    account.run("team-a")
    done = account.run("team-a", "team-b")
    assert done.returncode == 0, done.stderr
    assert len(account.calls("aws", "iam", "create-role")) == 3
    associations = account.calls("aws", "eks", "create-pod-identity-association")
    assert [(call[8], call[10]) for call in associations] == [
        ("ray-history", "historyserver"),
        ("ray-history", "history-retention"),
        ("team-a", "ray-collector"),
        ("team-b", "ray-collector"),
    ]
    assert "team-a/ray-collector already has the association a-123" in done.stdout


def test_roles_of_another_cluster_are_not_changed(account: Account) -> None:
    account.run("team-a")
    before = len(account.calls("aws", "iam", "put-role-policy"))
    done = account.run("team-a", EKS_CLUSTER_NAME="staging")
    assert done.returncode == 1
    assert "does not belong to the cluster staging" in done.stderr
    assert len(account.calls("aws", "iam", "put-role-policy")) == before


def test_script_stops_at_the_first_error(account: Account) -> None:
    assert account.run("team-a", DENIED="yes").returncode != 0
    assert account.calls("kubectl") == []
    assert len(account.calls("aws", "iam", "create-role")) == 1


@pytest.mark.parametrize("name", VARIABLES)
def test_missing_variable_is_named(account: Account, name: str) -> None:
    done = account.run("team-a", unset=name)
    assert done.returncode != 0
    assert f"{name}:" in done.stderr
