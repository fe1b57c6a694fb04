{{- define "rayhistory.name" -}}
{{- .Values.fullnameOverride | default (.Values.nameOverride | default .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "rayhistory.selector" -}}
app.kubernetes.io/name: ray-history-server
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rayhistory.retentionSelector" -}}
app.kubernetes.io/name: ray-history-retention
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rayhistory.labels" -}}
{{ include "rayhistory.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "rayhistory.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "rayhistory.name" .) -}}
{{- end -}}

{{- /* Names of CronJobs have at most 52 characters. */ -}}
{{- define "rayhistory.retentionName" -}}
{{- include "rayhistory.name" . | trunc 42 | trimSuffix "-" }}-retention
{{- end -}}

{{- define "rayhistory.needsKubernetesApi" -}}
{{- or .Values.discovery.enabled .Values.live.enabled (eq .Values.auth "kubernetes") -}}
{{- end -}}

{{- define "rayhistory.settings" -}}
{{- range $name, $value := .Values.settings }}
- {name: RAYHISTORY_{{ upper $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end -}}

{{- define "rayhistory.restricted" -}}
runAsNonRoot: true
runAsUser: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* If the API server is reachable (not in `helm template`), fail with the name of a missing Secret. */ -}}
{{- define "rayhistory.checkSecret" -}}
{{- with .Values.credentialsSecret -}}
{{- if and (lookup "v1" "Namespace" "" "kube-system") (not (lookup "v1" "Secret" $.Release.Namespace .)) -}}
{{- fail (printf "credentialsSecret: there is no Secret %q in the namespace %q" . $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rayhistory.egress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
    {{- range .Values.networkPolicy.ports }}
    - {port: {{ . }}}
    {{- end }}
# Metadata servers and the agent of EKS Pod Identity, for credentials.
- to:
    - ipBlock: {cidr: 169.254.169.254/32}
    - ipBlock: {cidr: 169.254.169.252/32}
    - ipBlock: {cidr: 169.254.170.23/32}
    - ipBlock: {cidr: "fd00:ec2::254/128"}
    - ipBlock: {cidr: "fd00:ec2::23/128"}
  ports:
    - {port: 80}
    - {port: 988}
{{- end -}}
