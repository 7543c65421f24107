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

{{- define "eto.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
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
{{- if .Values.decisionLog.enabled }}
{{- $_ := set $own "decision-log" (dict "dir" "/var/log/elastic-training") }}
{{- end }}
{{- if or .Values.policies.configMap .Values.policies.volume }}
{{- $_ := set $own.policies "dir" "/etc/elastic-training/policies" }}
{{- end }}
{{- $toml := toToml (mergeOverwrite $own (deepCopy .Values.settings)) }}
{{- $toml = regexReplaceAll "(?m)(= -?[0-9]+)\\.0$" $toml "${1}" }}
{{- regexReplaceAll "\\n\\s*" $toml "\n" | trim }}
{{- end }}
