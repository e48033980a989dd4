{{- define "kvbudget.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvbudget.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "kvbudget.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvbudget.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvbudget.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: kvbudget
{{- end -}}

{{- define "kvbudget.selector" -}}
app.kubernetes.io/name: {{ include "kvbudget.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "kvbudget.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "kvbudget.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "kvbudget.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Namespaces of services that are followed, one a line. */}}
{{- define "kvbudget.namespaces" -}}
{{- $found := list -}}
{{- range .Values.backends -}}
{{- if hasPrefix "k8s://" . -}}
{{- $found = append $found (index (splitList "/" (trimPrefix "k8s://" .)) 0) -}}
{{- end -}}
{{- end -}}
{{- range (regexFindAll "k8s://[a-z0-9-]+" .Values.config -1) -}}
{{- $found = append $found (trimPrefix "k8s://" .) -}}
{{- end -}}
{{- $found | uniq | join "\n" -}}
{{- end -}}

{{/* Seconds from the first wait to the last token of the longest answer. */}}
{{- define "kvbudget.drainSeconds" -}}
{{- $first := int .Values.plan.first_token_s -}}
{{- $rest := mul (sub (int .Values.plan.total_s) $first) (int .Values.longestAnswerTokens) -}}
{{- $tokens := int .Values.plan.output_tokens -}}
{{- add (int .Values.queueSeconds) $first (div (add $rest (sub $tokens 1)) $tokens) -}}
{{- end -}}

{{- define "kvbudget.graceSeconds" -}}
{{- if .Values.terminationGracePeriodSeconds -}}
{{- int .Values.terminationGracePeriodSeconds -}}
{{- else -}}
{{- add (int .Values.preStopSeconds) (int (include "kvbudget.drainSeconds" .)) 10 -}}
{{- end -}}
{{- end -}}

{{- define "kvbudget.check" -}}
{{- $gates := int .Values.replicas -}}
{{- if .Values.autoscaling.enabled -}}{{- $gates = int .Values.autoscaling.maxReplicas -}}{{- end -}}
{{- if .Values.extproc.enabled -}}{{- $gates = add $gates (int .Values.extproc.replicas) -}}{{- end -}}
{{- if and (gt (int $gates) 1) (not .Values.ledger.url) -}}
{{- fail (printf "%d gates before the same engines need ledger.url: each of them would promise the whole pool (replicas, autoscaling, extproc)" (int $gates)) -}}
{{- end -}}
{{- if and (gt (int $gates) 1) .Values.learnedState.existingClaim -}}
{{- fail "learnedState.existingClaim is for one gate: several would overwrite one another's" -}}
{{- end -}}
{{- if and (not .Values.backends) (not (contains "backend" .Values.config)) -}}
{{- fail "backends is empty, and config names none" -}}
{{- end -}}
{{- end -}}

{{/* Flags that gate and external processor have in common. */}}
{{- define "kvbudget.args" -}}
- "--host={{ .Values.listen }}"
- "--admin-host={{ .Values.listen }}"
- --admin-port=8801
- --learned-state=/state/learned.json
- --queue-seconds={{ int .Values.queueSeconds }}
- --drain-seconds={{ include "kvbudget.drainSeconds" . }}
{{- if .Values.config }}
- --config=/etc/kvbudget/kvbudget.toml
{{- end }}
{{- range .Values.backends }}
- {{ printf "--backend=%s" . | quote }}
{{- end }}
{{- with .Values.policy }}
- {{ printf "--policy=%s" . | quote }}
{{- end }}
{{- with .Values.ledger.url }}
- {{ printf "--ledger=%s" . | quote }}
{{- end }}
{{- with .Values.ledger.lost }}
- {{ printf "--ledger-lost=%s" . | quote }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "kvbudget.env" -}}
{{- with .Values.adminTokenSecret }}
{{- if .name }}
- name: KVBUDGET_ADMIN_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .Values.backendApiKeySecret }}
{{- if .name }}
- name: KVBUDGET_BACKEND_API_KEY
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .Values.ledger.passwordSecret }}
{{- if .name }}
- name: KVBUDGET_LEDGER_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
- name: NO_COLOR
  value: "1"
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What pods of both kinds have in common, around their one container. */}}
{{- define "kvbudget.podMetadata" -}}
labels:
  {{- include "kvbudget.selector" . | nindent 2 }}
  {{- include "kvbudget.labels" .root | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ .root.Values.config | sha256sum }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "kvbudget.podSpec" -}}
serviceAccountName: {{ include "kvbudget.serviceAccountName" .root }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: {{ if include "kvbudget.namespaces" .root }}true{{ else }}false{{ end }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "kvbudget.graceSeconds" .root }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if .root.Values.topologySpreadConstraints }}
  {{- toYaml .root.Values.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "kvbudget.selector" . | nindent 8 }}
  {{- end }}
volumes:
  - name: state
    {{- with .root.Values.learnedState.existingClaim }}
    persistentVolumeClaim: {claimName: {{ . }}}
    {{- else }}
    emptyDir: {sizeLimit: 64Mi}
    {{- end }}
  - name: tmp
    emptyDir: {sizeLimit: 64Mi}
  {{- if .root.Values.config }}
  - name: config
    configMap: {name: {{ include "kvbudget.fullname" .root }}-config}
  {{- end }}
{{- end -}}

{{- define "kvbudget.containerRest" -}}
lifecycle:
  preStop:
    exec: {command: [sleep, {{ .Values.preStopSeconds | quote }}]}
securityContext:
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - {name: state, mountPath: /state}
  - {name: tmp, mountPath: /tmp}
  {{- if .Values.config }}
  - {name: config, mountPath: /etc/kvbudget, readOnly: true}
  {{- end }}
{{- end -}}
