#!/usr/bin/env bash
# Create one role per program for one EKS cluster, and associate them with service accounts by EKS Pod Identity.
# The arguments are all namespaces with Ray clusters: pod-identity.sh team-a team-b. Repeat it for further namespaces: what
# exists stays, except the policies. It stops at the first error.
# Needs ACCOUNT_ID, AWS_REGION, BUCKET, EKS_CLUSTER_NAME, HISTORY_NAMESPACE, ROLE and PREFIX, which may be empty.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${ACCOUNT_ID:?}" "${AWS_REGION:?}" "${BUCKET:?}" "${EKS_CLUSTER_NAME:?}" "${HISTORY_NAMESPACE:?}" "${ROLE:?}" "${PREFIX?}"
: "${1:?name at least one namespace with Ray clusters}"
export ACCOUNT_ID AWS_REGION BUCKET EKS_CLUSTER_NAME PREFIX
# S3 replaces this variable by the namespace of the pod that sends the request.
export NAMESPACE='${aws:PrincipalTag/kubernetes-namespace}'

create_role() {  # PROGRAM
  local name=$ROLE-$1 trust
  if trust=$(aws iam get-role --role-name "$name" --query Role.AssumeRolePolicyDocument --output json 2>/dev/null); then
    if [[ $trust != *":$AWS_REGION:$ACCOUNT_ID:cluster/$EKS_CLUSTER_NAME\""* ]]; then
      echo "the role $name exists and does not belong to the cluster $EKS_CLUSTER_NAME: choose another ROLE" >&2
      exit 1
    fi
  else
    aws iam create-role --role-name "$name" \
      --assume-role-policy-document "$(envsubst < deploy/policies/aws/pod-identity-trust.json)"
  fi
  aws iam put-role-policy --role-name "$name" --policy-name store \
    --policy-document "$(envsubst < "deploy/policies/s3/$1.json")"
}

create_namespace() {  # NAMESPACE
  kubectl create namespace "$1" --dry-run=client -o yaml | kubectl apply -f -
}

associate() {  # NAMESPACE SERVICE_ACCOUNT PROGRAM
  local of=(--cluster-name "$EKS_CLUSTER_NAME" --region "$AWS_REGION" --namespace "$1" --service-account "$2") found
  found=$(aws eks list-pod-identity-associations "${of[@]}" --query 'associations[0].associationId' --output text)
  if [[ $found == None ]]; then
    aws eks create-pod-identity-association "${of[@]}" --role-arn "arn:aws:iam::$ACCOUNT_ID:role/$ROLE-$3"
  else
    echo "$1/$2 already has the association $found, which stays as it is"
  fi
}

for program in collector server retention; do
  create_role "$program"
done
create_namespace "$HISTORY_NAMESPACE"
for account in historyserver history-retention; do
  kubectl -n "$HISTORY_NAMESPACE" create serviceaccount "$account" --dry-run=client -o yaml | kubectl apply -f -
done
associate "$HISTORY_NAMESPACE" historyserver server
associate "$HISTORY_NAMESPACE" history-retention retention
for team in "$@"; do
  create_namespace "$team"
  kubectl -n "$team" apply -f deploy/manifests/service_account_collector.yaml
  associate "$team" ray-collector collector
done
