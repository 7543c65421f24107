{{/* The name of everything: the chart's, whatever the release is called, unless overridden. */}}
{{- define "eto.name" -}}
{{- .Values.fullnameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "eto.selector" -}}
app.kubernetes.io/name: elastic-training-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "eto.labels" -}}
{{ include "eto.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "eto.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "eto.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* An image of the values; a digest wins over the tag. */}}
{{- define "eto.imageOf" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .default }}
{{- end -}}
{{- end }}

{{/* Whether the operator reads all pods of the cluster; one that serves a single namespace does not, unless told to. */}}
{{- define "eto.watchAllPods" -}}
{{- dig "kubernetes" "watch-all-pods" (not (dig "kubernetes" "namespace" "" .Values.settings)) .Values.settings -}}
{{- end }}

{{/* What a role says of Secrets. */}}
{{- define "eto.noSecrets" -}}
{{ if and .Values.gateway.enabled .Values.images.pullSecrets }}Secrets by name alone,{{ else }}No secrets of others,{{ end }}
{{- end }}

{{/* What the operator does where the jobs are. */}}
{{- define "eto.namespacedRules" -}}
- apiGroups: [elastic.ai]
  resources: [elasticjobs]
  verbs: [list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [elastic.ai]
  resources: [elasticjobs/status]
  verbs: [patch]
- apiGroups: [elastic.ai]
  resources: [elasticjobs/finalizers] # owner references with blockOwnerDeletion
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [configmaps] # policies' states above 3 KiB, label elastic.ai/policy-state
  verbs: [list, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets] # how many workers may be evicted at a time
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims] # placement: which volumes a job has
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if and .Values.gateway.enabled .Values.images.pullSecrets }}
- apiGroups: [""]
  resources: [secrets, serviceaccounts] # images.pullSecrets: each by its name, when an image is read
  verbs: [get]
{{- end }}
{{- end }}

{{- define "eto.image" -}}
{{ include "eto.imageOf" (dict "image" .Values.image "default" .Chart.AppVersion) }}
{{- end }}

{{- define "eto.gateway" -}}
{{ include "eto.name" . | trunc 55 | trimSuffix "-" }}-gateway
{{- end }}

{{- define "eto.etcd" -}}
{{ include "eto.name" . | trunc 50 | trimSuffix "-" }}-etcd
{{- end }}

{{- define "eto.etcdSelector" -}}
app.kubernetes.io/name: elastic-training-etcd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "eto.etcdLabels" -}}
{{ include "eto.etcdSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The settings of the gateway. */}}
{{- define "eto.gatewaySettings" -}}
{{- $etcd := .Values.gateway.etcd }}
{{- $own := dict
    "address" (printf "0.0.0.0:%d" (int .Values.gateway.port))
    "url" (printf "https://%s.%s.svc:%d" (include "eto.gateway" .) .Release.Namespace (int .Values.gateway.port))
    "secret" (include "eto.gateway" .)
    "agent-image" (include "eto.imageOf" (dict "image" .Values.gateway.agentImage "default" .Chart.AppVersion))
    "agent-pull-policy" .Values.gateway.agentImage.pullPolicy }}
{{- if $etcd.external.endpoints }}
{{- $_ := set $own "etcd-endpoints" (join "," $etcd.external.endpoints) }}
{{- $_ := set $own "etcd-ca-file" "/etc/elastic-training/etcd/ca.crt" }}
{{- $_ := set $own "etcd-cert-file" "/etc/elastic-training/etcd/tls.crt" }}
{{- $_ := set $own "etcd-key-file" "/etc/elastic-training/etcd/tls.key" }}
{{- else }}
{{- $name := include "eto.etcd" . }}
{{- $endpoints := list }}
{{- range $i := until (int $etcd.replicas) }}
{{- $endpoints = append $endpoints (printf "https://%s-%d.%s.%s.svc:2379" $name $i $name $.Release.Namespace) }}
{{- end }}
{{- $_ := set $own "etcd-endpoints" (join "," $endpoints) }}
{{- $_ := set $own "etcd-secret" $name }}
{{- end }}
{{- toYaml $own }}
{{- end }}

{{/*
The settings file: the chart's own paths, then `settings` over them.
Helm reads every number as a float; whole ones are written as integers again.
*/}}
{{- define "eto.settings" -}}
{{- $own := dict
    "leader" (dict "name" (include "eto.name" .))
    "policies" (dict "cache-dir" "/var/cache/elastic-training/policies")
    "server" (dict "address" (printf "0.0.0.0:%d" (int .Values.metrics.port))) }}
{{- if dig "kubernetes" "namespace" "" .Values.settings }}
{{- $_ := set $own "kubernetes" (dict "watch-all-pods" (eq (include "eto.watchAllPods" .) "true")) }}
{{- end }}
{{- if .Values.decisionLog.enabled }}
{{- $_ := set $own "decision-log" (dict "dir" "/var/log/elastic-training") }}
{{- end }}
{{- if or .Values.policies.configMap .Values.policies.volume }}
{{- $_ := set $own.policies "dir" "/etc/elastic-training/policies" }}
{{- end }}
{{- if .Values.gateway.enabled }}
{{- $_ := set $own "gateway" (include "eto.gatewaySettings" . | fromYaml) }}
{{- if .Values.images.pullSecrets }}
{{- $_ := set $own "images" (dict "pull-secrets" true) }}
{{- end }}
{{- end }}
{{- $toml := toToml (mergeOverwrite $own (deepCopy .Values.settings)) }}
{{- $toml = regexReplaceAll "(?m)(= -?[0-9]+)\\.0$" $toml "${1}" }}
{{- regexReplaceAll "\\n\\s*" $toml "\n" | trim }}
{{- end }}
