{{- define "skysail.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "skysail.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "skysail.fullname" .) -}}
{{- end -}}

{{- define "skysail.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "skysail.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default "skysail" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: vgpu-controllers
{{- end -}}

{{- define "skysail.bridgeLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default "skysail" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: bridge
{{- end -}}

{{- define "skysail.labels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default "skysail" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: skysail
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Settings file of the operator: values by files/values-to-settings.yaml, then `settings`, which win. */}}
{{- define "skysail.settings" -}}
{{- $settings := dict "webhook_service" (printf "%s-webhook" (include "skysail.fullname" .)) "progress_service" (printf "%s-progress" (include "skysail.fullname" .)) -}}
{{- $_ := set $settings "health_ports" (list .Values.service.port .Values.service.metricsPort | uniq) -}}
{{- $root := . -}}
{{- range $path, $setting := .Files.Get "files/values-to-settings.yaml" | fromYaml -}}
{{- $value := $root.Values -}}
{{- range splitList "." $path -}}{{- $value = get $value . -}}{{- end -}}
{{- if not (or (kindIs "invalid" $value) (and (kindIs "string" $value) (eq $value "")) (and (kindIs "slice" $value) (not $value)) (and (kindIs "map" $value) (not $value))) -}}
{{- $_ := set $settings $setting $value -}}
{{- end -}}
{{- end -}}
{{- if .Values.testing.enabled -}}{{- $_ := set $settings "log_level" "debug" -}}{{- end -}}
{{- range $setting, $value := .Values.settings -}}{{- $_ := set $settings $setting $value -}}{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* Port of a server of the operator: its setting, else the default. */}}
{{- define "skysail.port" -}}
{{- get .root.Values.settings .setting | default .default | int -}}
{{- end -}}

{{/* Metadata of a hook: (dict "root" . "name" ... "hook" ... "weight" ...). */}}
{{- define "skysail.hookMetadata" -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "skysail.labels" .root | nindent 2 }}
annotations:
  helm.sh/hook: {{ .hook }}
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Job of a hook that runs one command of skysail: (dict "root" . "name" ... "hook" ... "args" (list ...) "seconds" ...). */}}
{{- define "skysail.hookJob" -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "skysail.hookMetadata" (dict "root" .root "name" .name "namespace" .root.Release.Namespace "hook" .hook "weight" 1) | nindent 2 }}
spec:
  backoffLimit: 2
  activeDeadlineSeconds: {{ .seconds }}
  template:
    metadata:
      labels:
        {{- include "skysail.labels" .root | nindent 8 }}
        app.kubernetes.io/component: hook
    spec:
      restartPolicy: Never
      serviceAccountName: {{ .name }}
      enableServiceLinks: false
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml .root.Values.podSecurityContext | nindent 8 }}
      containers:
        - name: skysail
          image: {{ include "skysail.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [skysail]
          args:
            {{- toYaml .args | nindent 12 }}
          securityContext:
            {{- toYaml .root.Values.securityContext | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
      volumes:
        - name: tmp
          emptyDir: {}
{{- end -}}

{{/* ServiceAccount, ClusterRole and binding of a hook: (dict "root" . "name" ... "hook" ... "rules" ...). */}}
{{- define "skysail.hookAccount" -}}
{{- $account := dict "root" .root "name" .name "namespace" .root.Release.Namespace "hook" .hook "weight" 0 -}}
{{- $cluster := dict "root" .root "name" .name "hook" .hook "weight" 0 -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "skysail.hookMetadata" $account | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "skysail.hookMetadata" $cluster | nindent 2 }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "skysail.hookMetadata" $cluster | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
